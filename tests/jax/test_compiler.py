"""What the compiler may not lose: branches apart from each other, places in the source, dimensions."""
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from xla_cpu import on_cpu


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float8_e4m3fn])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2), (3, 2, 0, 1)])
def test_branches_that_hold_values_of_their_own(order, dtype):
    all_of = [lambda z, v: lax.dynamic_update_slice(v + v[:, 10:11], v + v[:, 10:11], (z, z, z)), lambda z, v: lax.rev(jnp.roll(v, -3, 1), (2, 1)),
              lambda z, v: -v, lambda z, v: v]
    branches = [all_of[k] for k in order]
    x = jnp.asarray(np.random.default_rng(0).integers(-4, 5, (64, 16, 1)), dtype)
    f = jax.jit(lambda i, z, x: (x[None], lax.switch(i, branches, z, x)[None]))
    for i, branch in enumerate(branches):
        kept, got = f(jnp.int32(i), jnp.int32(0), x)
        np.testing.assert_array_equal(np.asarray(kept[0], np.float32), np.asarray(x, np.float32))
        np.testing.assert_array_equal(np.asarray(got[0], np.float32), np.asarray(branch(jnp.int32(0), x), np.float32))


def test_functions_of_the_library_have_the_place_of_their_call(platform):
    m = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4], axis_types=(AxisType.Auto,))
    x = jax.device_put(np.arange(8.0), NamedSharding(m, P("x")))
    f = lambda x: jnp.sort(x)                           # a private function: its operations say no place of their own
    made = jax.jit(f).lower(x).compile()
    text, line = made.as_text(), f.__code__.co_firstlineno
    if platform == "rondo":
        assert f"test_compiler.py:{line} all_gather" in text
    else:
        assert "test_compiler.py" in text and "all-gather" in text
    np.testing.assert_array_equal(made(x), np.arange(8.0))


@pytest.mark.parametrize("rank", [32, 33, 48, 63])
def test_many_dimensions(rank):
    shape = [1] * rank
    shape[3], shape[rank // 2], shape[-1] = 2, 2, 3
    x = np.arange(12, dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(jax.jit(lambda x: x.transpose(tuple(reversed(range(rank)))) + 1)(x), x.transpose() + 1)
    np.testing.assert_array_equal(jax.jit(lambda x: x.sum(rank - 1))(x), x.sum(-1))
    np.testing.assert_array_equal(jax.jit(lambda x: x - x.max(3, keepdims=True))(x), x - x.max(3, keepdims=True))
    np.testing.assert_array_equal(jax.jit(lambda x: jnp.concatenate([x, lax.rev(x, (3,))], rank // 2))(x), np.concatenate([x, np.flip(x, 3)], rank // 2))
    np.testing.assert_array_equal(jax.jit(lambda x: jnp.cumsum(x, rank // 2))(x), np.cumsum(x, rank // 2))
    np.testing.assert_array_equal(jax.jit(lambda x: lax.pad(x, np.float32(0), [(1, 0, 0)] + [(0, 0, 0)] * (rank - 1)))(x), np.pad(x, [(1, 0)] + [(0, 0)] * (rank - 1)))
    np.testing.assert_array_equal(jax.jit(lambda x: x.at[(0,) * (rank - 1)].set(9.0))(x).ravel(), [9, 9, 9, *range(3, 12)])
    np.testing.assert_array_equal(jax.jit(lambda x: jnp.sort(-x, 3))(x), np.flip(-x, 3))
    np.testing.assert_array_equal(jax.jit(lambda x: jnp.broadcast_to(x, (2, *x.shape)))(x), np.broadcast_to(x, (2, *x.shape)))


@pytest.mark.only_rondo("XLA:CPU has more")
def test_too_many_dimensions_are_named():
    f = lambda x: jnp.sin(x.reshape((1,) * 64 + (2,))).sum()
    with pytest.raises(Exception, match=rf"rank 65.*test_compiler.py:{f.__code__.co_firstlineno}|test_compiler.py:{f.__code__.co_firstlineno}.*rank 65"):
        jax.jit(f)(np.ones(2, np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint16])
@pytest.mark.parametrize("n", [1 << 18, (1 << 18) + 5, 300007])
def test_places_in_long_arrays(n, dtype):
    x = np.random.default_rng(n).integers(0, 100, n).astype(dtype)
    special = [np.inf, -np.inf, np.nan] if dtype in (np.float32, np.float16) else [127]
    for value in [None, *special]:
        if value is not None:
            x[[n // 3, n - 2, n - 1]] = value           # the first of them is found
        for find, of in [(jnp.argmax, np.argmax), (jnp.argmin, np.argmin)]:
            assert jax.jit(find)(x) == of(x)
            assert jax.jit(lambda x, c: find(jnp.where(jnp.arange(n) == c, x[7] - x[7], x)))(x, n - 3) == of(np.where(np.arange(n) == n - 3, x[7] - x[7], x))
    assert jax.jit(jnp.argmax)(np.full(n, -np.inf if special[1:] else 0, dtype)) == 0


def test_long_reductions_with_what_they_are_computed_from():
    n = (1 << 18) + 5
    x, y = np.random.default_rng(0).standard_normal((2, n)).astype(np.float32)
    for f in [lambda x, y: (x * y).sum(), lambda x, y: (x - y).max(), lambda x, y: (x * (abs(x) > n - 1)).sum(), lambda x, y: (x + y[5]).min()]:
        np.testing.assert_allclose(jax.jit(f)(x, y), f(x.astype(np.float64), y.astype(np.float64)), rtol=1e-5, atol=1e-3)
    kept, total = jax.jit(lambda x: (lax.exp(x), lax.exp(x).sum()))(x)      # what others read is computed once
    np.testing.assert_allclose([np.asarray(kept).sum(dtype=np.float64), total], np.exp(x.astype(np.float64)).sum(), rtol=1e-5)
    both = jax.jit(lambda x: lax.reduce((x, lax.iota(np.int32, n)), (np.float32(-9), np.int32(-1)), lambda a, b: [lax.select(a[0] >= b[0], p, q) for p, q in zip(a, b)], (0,)))
    value, place = both(x)
    assert (value, place) == (x.max(), x.argmax())
    assert tuple(both(x - 20)) == (-9, -1)


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("part", [0, 0.0005, 0.5, 0.9995, 1])
def test_the_first_that_is_true_or_false(part, axis):
    x = np.random.default_rng(0).random((70, 5000)) < part
    for f in "argmax", "argmin":
        np.testing.assert_array_equal(jax.jit(lambda x: getattr(jnp, f)(x, axis))(x), getattr(x, f)(axis))


@pytest.mark.parametrize("index", [np.int32, np.uint32, np.int8])
@pytest.mark.parametrize("order", ["rising", "falling", "mixed", "added", "constant"])
def test_which_nan_is_first(order, index):
    """The greatest and its place, by a reducer as argmax has it: equal elements are told apart by the index, NaN by their order."""
    def reducer(a, b):
        first = (a[0] > b[0]) | (a[0] != a[0])
        return lax.select(first, a[0], b[0]), lax.select(first | ((a[0] == b[0]) & (a[1] < b[1])), a[1], b[1])

    n = 100 if index is np.int8 else 300
    x = np.random.default_rng(0).integers(0, 9, (40, n)).astype(np.float32)
    x[::2, ::7] = np.nan
    mixed = np.random.default_rng(1).permutation(n).astype(index)

    def f(x, shift):
        i = lax.broadcasted_iota(index, x.shape, 1)
        i = {"rising": i, "falling": lax.sub(lax.full_like(i, n - 1), i), "mixed": jnp.broadcast_to(jnp.asarray(mixed), x.shape), "added": i + lax.full_like(i, 27), "constant": i * 0 + shift}[order]
        return lax.reduce((x, i), (np.float32(-np.inf), index(np.iinfo(index).max)), reducer, (1,))

    for got, want in zip(jax.jit(f)(x, index(3)), on_cpu(f, x, index(3))):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(1, 50257), (5, 32000), (3, 2, 25001)])
def test_what_several_passes_over_long_rows_read(shape):
    x, key = np.random.default_rng(0).standard_normal(shape).astype(np.float32), jax.random.key(7)
    for f in [lambda x: jax.nn.softmax(30 * jnp.tanh(jnp.log1p(x * x) / 30)), lambda x: (lambda y: (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True)))(jnp.exp(jnp.sin(x))),
              lambda x: (lambda y: (y, jax.nn.log_softmax(y), y.max(-1)))(jnp.tanh(jnp.exp(x)))]:
        for got, want in zip(jax.tree.leaves(jax.jit(f)(x)), jax.tree.leaves(on_cpu(f, x))):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(jax.jit(jax.random.categorical)(key, x), on_cpu(jax.random.categorical, key, x))


def test_few_of_many_elements():
    def f(n, np=jnp):
        a = np.broadcast_to(np.arange(1200, dtype=np.int32)[:, None], (1200, 1025)).astype(np.int8) * np.int8(3) + n
        column = np.broadcast_to(np.arange(1025, dtype=np.int32), (1200, 1025))
        b = np.where(column > 500, a.astype(np.int32), column)
        c = np.broadcast_to(np.arange(1025, dtype=np.int32)[None, :, None] + n, (3, 1025, 900))
        return a.T[-2:, 5:200:7], a.T.reshape(-1)[1200 * 7 + 1199], b[::97, 3:1000:111], b.T[1000:1024:5, -3:], c[1, 1020:, ::300]

    for got, want in zip(jax.jit(f)(np.int8(7)), f(np.int8(7), np)):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", ["cond", "fori"])
def test_deep_nests_compile(kind, platform):
    """Twice the time for each level would not end."""
    def cond(x, d):
        return x + 1 if d == 0 else lax.cond(x[0] > -d, lambda x: cond(x, d - 1), lambda x: x - 1, x)

    def fori(x, d):
        return x + 1 if d == 0 else lax.fori_loop(0, 1 + (d == 1), lambda i, x: fori(x, d - 1), x)

    np.testing.assert_array_equal(jax.jit(lambda x: {"cond": cond, "fori": fori}[kind](x, 34))(np.ones(3, np.float32)), [2 + (kind == "fori")] * 3)


# Kinds of operations, of n elements or so.
OF_EXTENT = {
    "product": lambda n: (jnp.matmul, (n, 3), (3,)), "product of few columns": lambda n: (jnp.matmul, (n, 8), (8, 8)),
    "product of few rows": lambda n: (jnp.matmul, (3,), (3, n)), "dot": lambda n: (jnp.dot, (n,), (n,)), "outer": lambda n: (jnp.outer, (n,), (100,)),
    "products": lambda n: (jnp.matmul, (n, 4, 4), (n, 4, 4)), "turned product": lambda n: (lambda a, b: jnp.einsum("ikj,kl->jil", a, b), (n // 1000, 4, 1000), (4, 4)),
    "turned sum of products": lambda n: (lambda a, b: jnp.einsum("ij,ji->", a, b), (n // 1000, 1000), (1000, n // 1000)),
    "convolve": lambda n: (jnp.convolve, (n,), (31,)), "convolution": lambda n: (lambda x, w: lax.conv(x, w, (1,), "SAME"), (4, 8, n), (8, 8, 3)),
    "convolutions": lambda n: (lambda x, w: lax.conv(x, w, (1, 1), "SAME"), (n // 16, 4, 4, 4), (4, 4, 3, 3)),
    "fft": lambda n: (lambda x: jnp.fft.rfft(x), (n // 100, 100)), "sort": lambda n: (jnp.argsort, (n,)), "argmax": lambda n: (jnp.argmax, (n,)),
    "cumsum": lambda n: (jnp.cumsum, (n,)), "sum of columns": lambda n: (lambda x: x.sum(0), (n, 3)), "softmax": lambda n: (jax.nn.softmax, (n,)),
    "max-pool": lambda n: (jax.grad(lambda x: lax.reduce_window(x, -np.inf, lax.max, (3,), (2,), "SAME").sum()), (n,)),
    "gather": lambda n: (lambda x, i: x[i.astype(jnp.int32)], (n,), (n,)), "scatter": lambda n: (lambda x, i: x.at[i.astype(jnp.int32)].add(1), (n,), (n,)),
    "transpose": lambda n: (lambda x: x.T + 1, (n // 100, 100)), "pad": lambda n: (lambda x: lax.pad(x, jnp.float32(0), [(3, 4, 1)]), (n,)),
    "random": lambda n: (lambda x: x * jax.random.normal(jax.random.key(0), (n,)), (n,)), "scan": lambda n: (lambda x: lax.scan(lambda c, x: (c + x.sum(), x * c), 0.0, x), (n // 4, 4)),
}


@pytest.mark.parametrize("kind", OF_EXTENT)
def test_what_compiling_takes_does_not_grow_with_extents(kind, platform):
    def resident():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * 4096

    def compiled(n):
        fn, *shapes = OF_EXTENT[kind](n)
        return jax.jit(fn).lower(*(jax.ShapeDtypeStruct(s, np.float32) for s in shapes)).compile()

    small = compiled(10**4)
    before = resident()
    large = compiled(10**8)
    assert resident() - before < 32 << 20
    if platform != "cpu":
        assert large.memory_analysis().generated_code_size_in_bytes < 2 * small.memory_analysis().generated_code_size_in_bytes + 65536


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float64, np.int32, np.complex64])
def test_offsets_that_are_computed(dtype):
    def same(fn, want, *args):
        got = jax.jit(fn)(*(x.astype(dtype) for x in args))
        np.testing.assert_array_equal(np.asarray(got), want.astype(dtype))

    with jax.enable_x64(True):
        r = np.random.default_rng(0)
        a, b = r.integers(-3, 4, (130, 4, 140)), r.integers(-3, 4, (4, 5))
        for spec in "ikj,kl->jil", "ikj,kl->lji":
            same(lambda a, b, spec=spec: jnp.einsum(spec, a, b), np.einsum(spec, a, b), a, b)
        same(lambda a, b: jnp.einsum("ikj,jki->kji", a, b), a.transpose(1, 2, 0) ** 2, a, a.T)
        c, d = r.integers(0, 2, (1030, 1030)), r.integers(0, 2, (1030, 1030))
        same(lambda c, d: jnp.einsum("ij,ji->", c, d), (c * d.T).sum(), c, d)
        x, w = r.integers(-3, 4, (2, 3, 20000)), r.integers(-3, 4, (4, 3, 3))
        same(lambda x, w: lax.conv(x, w, (1,), "VALID"), sum(np.einsum("bct,oc->bot", x[:, :, k : 19998 + k], w[:, :, k]) for k in range(3)), x, w)


@pytest.mark.parametrize("norm", ["rms", "mean", "none"])
def test_what_reads_a_sum_follows_it_in_one_pass(norm, platform):
    """The residual and its norm, which needs a row: part by part, while what was summed is in the caches."""
    m = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2], axis_types=(AxisType.Auto,))
    rng = np.random.default_rng(0)
    x, h, w, g = (rng.standard_normal(s, np.float32) for s in ((256, 512), (256, 128), (128, 512), (512,)))

    def layer(x, h, w, g):
        r = x + lax.psum(h @ w, "x")
        c = r - r.mean(-1, keepdims=True) if norm == "mean" else r
        n = c * lax.rsqrt((c * c).mean(-1, keepdims=True) + 1e-6) if norm != "none" else jnp.maximum(r, 0)
        return r, n * g

    f = jax.jit(jax.shard_map(layer, mesh=m, in_specs=(P(), P(None, "x"), P("x"), P()), out_specs=P(), check_vma=False))
    made = f.lower(x, h, w, g).compile()
    if platform == "rondo":
        followers = [line for line in made.as_text().splitlines() if re.match(r" *then ", line)]
        assert len(followers) == 1 and re.search(r"-> \(b\d+, b\d+\)", followers[0]), made.as_text()
    r, n = made(x, h, w, g)
    want = x + h @ w
    c = want - want.mean(-1, keepdims=True) if norm == "mean" else want
    c = c / np.sqrt((c * c).mean(-1, keepdims=True) + 1e-6) if norm != "none" else np.maximum(want, 0)
    np.testing.assert_allclose(r, want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(n, c * g, rtol=1e-3, atol=1e-3)


@pytest.mark.only_rondo("Rondo's generated code")
def test_cells_of_small_networks_are_little_code(tmp_path):
    """Rows of weights that are no power of two are loaded as they are, not number by number: LLVM takes seconds for a loop's body of thousands of those."""
    code = """
import jax, jax.numpy as jnp
def cell(s, x, W):
    c, h = s
    i, f, g, o = [x @ W[2 * j] + h @ W[2 * j + 1] for j in range(4)]
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (c, h), h
W, x = [jnp.ones((12, 12)) * .1] * 8, jnp.ones((15, 4, 12))
print(jax.jit(lambda W, x: jax.lax.scan(lambda s, x: cell(s, x, W), (jnp.zeros((4, 12)),) * 2, x)[1])(W, x).shape)
"""
    run = subprocess.run([sys.executable, "-c", code], env={**os.environ, "RONDO_DUMP": str(tmp_path), "RONDO_CACHE": ""}, capture_output=True, text=True)
    assert run.stdout == "(15, 4, 12)\n", run.stderr
    loops = [t for p in tmp_path.glob("gen-*.ll") if "fma" in (t := p.read_text())]
    assert loops and all(t.count("insertelement") < 500 for t in loops), [t.count("insertelement") for t in loops]
