"""Operations that look along a dimension that is cut: the values of the unsharded program, on every device."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P


def mesh(*shape):
    n = int(np.prod(shape))
    return jax.make_mesh(shape, ("x", "y", "z")[:len(shape)], devices=jax.devices()[:n], axis_types=(AxisType.Auto,) * len(shape))


def check(f, args, specs, m, out=None, rtol=0.0):
    """f of sharded args is f of the whole ones, in all shards."""
    want = jax.tree.leaves(jax.jit(f)(*args))
    put = [jax.device_put(x, NamedSharding(m, P(*s))) for x, s in zip(args, specs, strict=True)]
    how = {} if out is None else {"out_shardings": NamedSharding(m, P(*out))}
    got = jax.tree.leaves(jax.jit(f, **how)(*put))
    for g, w in zip(got, want, strict=True):
        w = np.asarray(w)
        assert g.dtype == w.dtype and g.shape == w.shape
        for s in g.addressable_shards:
            a, b = np.asarray(s.data), w[s.index]
            if rtol and g.dtype != np.int32:
                np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=rtol * 10)
            else:
                np.testing.assert_array_equal(a, b)
                np.testing.assert_array_equal(np.signbit(a.astype(np.float64)), np.signbit(b.astype(np.float64)))


def whole(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(dtype)


MESHES = [3, 4]


# --- moved elements ------------------------------------------------------------------------------------------------------

MOVES = {
    "roll": lambda x: jnp.roll(x, 1, 0),
    "roll_back_far": lambda x: jnp.roll(x, -7, 0),
    "token_shift": lambda x: jnp.concatenate([jnp.zeros((1, 8), x.dtype), x[:-1]]),
    "shift_of_other": lambda x: jnp.concatenate([x[-2:] * 3, x[:-2]]),
    "pad": lambda x: lax.pad(x, np.float32(7), [(2, -2, 0), (0, 0, 0)]),
    "pad_far": lambda x: lax.pad(x, np.float32(7), [(-11, 11, 0), (0, 0, 0)]),
    "pad_interior": lambda x: lax.pad(x, np.float32(-1), [(1, 0, 1), (0, 0, 0)]),
    "pad_interior_uneven": lambda x: lax.pad(x, np.float32(-1), [(3, -1, 2), (1, 0, 0)]),
    "pad_by_value": lambda x: lax.pad(x, x[3, 3], [(1, -1, 0), (0, 0, 0)]),
    "reverse": lambda x: lax.rev(x, (0, 1)),
    "strided": lambda x: x[::2],
    "strided_back": lambda x: x[::-2],
    "strided_pads": lambda x: lax.pad(x[1::3], np.float32(1), [(4, 4, 1), (0, 0, 0)])[:16],
    "slice_of_both": lambda x: x[12:, 4:],
    "rotate_half": lambda x: jnp.concatenate([-x[12:], x[:12]]),
    "twice": lambda x: jnp.concatenate([x, x]),
    "with_other": lambda x: jnp.concatenate([x[:, :4], x[:, 4:] + 1]),
    "difference": lambda x: jnp.pad(x[1:] - x[:-1], ((1, 0), (0, 0))),
    "sum_of_difference": lambda x: jnp.sum((x[1:] - x[:-1]) ** 2, axis=0),
    "chain": lambda x: jnp.roll(lax.rev(jnp.pad(x[3:21], ((2, 4), (0, 0)), constant_values=5), (0,)), 5, 0)[::2],
    "shared": lambda x: (jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0) - 2 * x, jnp.roll(jnp.roll(x, 2, 0) + 1, 3, 0)),
}


@pytest.mark.parametrize("n", MESHES)
@pytest.mark.parametrize("name", MOVES)
def test_moved(name, n):
    m = mesh(n)
    check(MOVES[name], [whole(24, 8)], [("x",)], m)
    check(lambda x: jax.tree.map(lambda y: y * 2, MOVES[name](x)), [whole(24, 8)], [("x",)], m)


@pytest.mark.parametrize("spec", [("x", "y"), (("y", "x"), None), ("y", None)])
def test_moved_along_two(spec):
    m = mesh(2, 2)
    for f in (lambda x: jnp.pad(x, ((1, 2), (2, 1)))[:12, :12], lambda x: jnp.roll(x, (1, -2), (0, 1)), lambda x: lax.rev(x, (0, 1))[::2, ::2]):
        check(f, [whole(12, 12)], [spec], m)


def test_moved_in_loops():
    m = mesh(4)
    check(lambda x: lax.fori_loop(0, 5, lambda i, a: a + jnp.roll(a, i % 2 + 1, 0) - jnp.roll(a, 1, 0), x), [whole(8, 4)], [("x",)], m)
    check(lambda x: lax.scan(lambda c, _: (jnp.concatenate([c[-1:], c[:-1]]) % 7, c.sum()), x, None, 3), [whole(8, 4)], [("x",)], m)
    check(lambda x, i: lax.cond(i > 0, lambda a: jnp.roll(a, 1), lambda a: a[::-1], jnp.roll(x, 2)), [whole(8), np.int32(1)], [("x",), ()], m)


# --- windows ---------------------------------------------------------------------------------------------------------------

WINDOWS = {
    "same": dict(w=3, s=1, pad=(1, 1)), "causal": dict(w=4, s=1, pad=(3, 0)), "wide": dict(w=9, s=1, pad=(4, 4)), "stride": dict(w=3, s=2, pad=(0, 1)),
    "stride_low": dict(w=3, s=2, pad=(1, 0)), "pool": dict(w=2, s=2, pad=(0, 0)), "dilated": dict(w=3, s=1, pad=(3, 3), wd=3), "base": dict(w=3, s=1, pad=(2, 1), bd=2),
    "base_stride": dict(w=4, s=2, pad=(2, 1), bd=2), "base_uneven": dict(w=4, s=3, pad=(2, 1), bd=2), "cut": dict(w=3, s=1, pad=(-1, 3)),
}


@pytest.mark.parametrize("n", MESHES)
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name, n):
    k = WINDOWS[name]
    for init, op in ((np.float32(0), lax.add), (np.float32(-np.inf), lax.max), (np.float32(2), lax.mul)):
        def f(x):
            return lax.reduce_window(x, init, op, (k["w"], 1), (k["s"], 1), [k["pad"], (0, 0)], (k.get("bd", 1), 1), (k.get("wd", 1), 1))
        check(f, [whole(24, 4) / 4], [("x",)], mesh(n), rtol=1e-5)


@pytest.mark.parametrize("n,w,s,parts", [(24, 2, 2, 4), (24, 3, 3, 4), (26, 4, 2, 2), (24, 2, 2, 3), (28, 6, 2, 4), (24, 3, 2, 2)])
def test_gradient_of_a_pool(n, w, s, parts):
    def f(x):
        return (lax.reduce_window(x, -np.inf, lax.max, (w, 2), (s, 2), "VALID" if (n, w) != (24, 3) or s == 3 else "SAME") ** 2).sum()
    x = whole(n, 4)                          # with equal ones
    check(jax.grad(f), [x], [("x",)], mesh(parts))
    check(jax.grad(f), [x], [("x", "y")], mesh(2, 2))


def conv(k, dims):
    def f(x, w):
        return lax.conv_general_dilated(x, w, (k["s"],) * dims, [k["pad"]] * dims, (k.get("bd", 1),) * dims, (k.get("wd", 1),) * dims, feature_group_count=k.get("fg", 1))
    return f


@pytest.mark.parametrize("n", MESHES)
@pytest.mark.parametrize("name", WINDOWS)
def test_convolution_along_space(name, n):
    k = WINDOWS[name]
    x, w, m = whole(2, 3, 24), whole(5, 3, k["w"], seed=1), mesh(n)
    check(conv(k, 1), [x, w], [(None, None, "x"), ()], m)
    check(jax.grad(lambda x, w: (conv(k, 1)(x, w) ** 2).sum(), (0, 1)), [x, w], [(None, None, "x"), ()], m)
    check(jax.grad(lambda x, w: (conv(k, 1)(x, w) ** 2).sum(), (0, 1)), [whole(24, 3, 8), w], [("x",), ()], m)


@pytest.mark.parametrize("spec", [("x", None, "y"), (None, None, "x", "y"), (None, "x", "y"), (None, None, ("y", "x"))])
def test_convolution_along_two(spec):
    m, x, w = mesh(2, 2), whole(4, 4, 8, 16), whole(6, 4, 3, 3, seed=1)
    for k in (dict(s=1, pad=(1, 1)), dict(s=2, pad=(0, 1))):
        check(conv(k, 2), [x, w], [spec, ()], m)
        check(jax.grad(lambda x, w: (conv(k, 2)(x, w) ** 2).sum(), (0, 1)), [x, w], [spec, ()], m)
    check(conv(dict(s=1, pad=(1, 1), fg=4), 2), [x, whole(4, 1, 3, 3)], [spec, ()], m)


# --- scans, selections ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("n", MESHES)
@pytest.mark.parametrize("f", [jnp.cumsum, jnp.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp])
def test_scans(f, n):
    x = whole(24, 4)
    x = np.where(x == 0, 1, np.sign(x)) if f is jnp.cumprod else x
    check(lambda x: f(x, 0), [x], [("x",)], mesh(n), rtol=1e-5)
    if f in (lax.cummax, lax.cummin):
        check(lambda x: f(x, 0, reverse=True), [x.astype(np.int32)], [("x",)], mesh(n))
    check(lambda x: jax.grad(lambda y: (f(y, 0) * jnp.arange(4)).sum())(x), [x], [("x",)], mesh(n), rtol=1e-5)


def test_scan_rounds_once():
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(jnp.bfloat16)
    check(lambda x: jnp.cumsum(x, 0), [x], [("x",)], mesh(4), rtol=2e-2)


@pytest.mark.parametrize("n", MESHES)
def test_extremes(n):
    x = whole(5, 24)                         # with equal ones
    for y in (x, np.full_like(x, -np.inf), np.where(x > 7, np.nan, x), x.astype(np.int32), np.zeros_like(x)):
        check(lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 1), jnp.argmax(x)), [y], [(None, "x")], mesh(n))
    for k in (1, 2, 7, 24):
        check(lambda x: lax.top_k(x, k), [x], [(None, "x")], mesh(n))
        check(lambda x: lax.top_k(x.astype(jnp.bfloat16), k)[1], [x], [(None, "x")], mesh(n))
    check(lambda x: (jnp.sort(x, 1), jnp.argsort(x, 1)), [x], [(None, "x")], mesh(n))


# --- slices at places that are not known ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", [np.float32, np.int32, jnp.bfloat16, np.bool_, np.complex64, np.int8])
def test_dynamic_slices(dtype):
    x = np.where(whole(24, 4) == 0, -0.0, whole(24, 4)).astype(dtype)
    for n in MESHES:
        for size in (1, 2, 7, 13):
            f = jax.jit(lambda x, i: lax.dynamic_slice(x, (i, 1), (size, 2)))
            y = jax.device_put(x, NamedSharding(mesh(n), P("x")))
            for i in (-5, 0, 3, 11, 23, 30):
                got, want = np.asarray(f(y, i)), np.asarray(f(x, i))
                np.testing.assert_array_equal(got, want)
                np.testing.assert_array_equal(np.signbit(got.real.astype(np.float32)), np.signbit(want.real.astype(np.float32)))


@pytest.mark.parametrize("at", [np.int32, np.int8, np.uint32])
@pytest.mark.parametrize("n", MESHES)
def test_dynamic_updates(n, at):
    x, m = whole(24, 4), mesh(n)
    for size in (1, 2, 7, 13, 24):
        f = jax.jit(lambda x, u, i: lax.dynamic_update_slice(x, u, (i, at(1))))
        y, u = jax.device_put(x, NamedSharding(m, P("x"))), whole(size, 2, seed=1)
        for i in (-5, 0, 3, 11, 23, 30):
            i = at(i if at != np.uint32 else abs(i))
            got, want = f(y, u, i), np.asarray(f(x, u, i))
            assert got.sharding.spec == P("x")
            np.testing.assert_array_equal(got, want)


def test_cache_of_decoding():
    m = mesh(2, 2)
    k, q = whole(2, 32, 4, 8), whole(2, 1, 4, 8)

    def f(k, q):
        def turn(c, i):
            k, q = c
            k = lax.dynamic_update_slice(k, q + i, (0, i, 0, 0))
            s = jnp.where(jnp.arange(32) <= i, jnp.einsum("bshd,bqhd->bhs", k, q), -1e9)
            q = jnp.einsum("bhs,bshd->bhd", jnp.round(jax.nn.softmax(s / 1000) * 8), k)[:, None] % 5
            return (k, q), q
        return lax.scan(turn, (k, q), jnp.arange(20, 32))
    check(f, [k, q], [("x", "y"), ("x",)], m)
