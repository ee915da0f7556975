"""Several devices: programs whose communication is written by hand."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

N = 4


def mesh(*shape, names=("x",)):
    return jax.sharding.Mesh(np.array(jax.devices()).reshape(shape or (N,)), names)


def sharded(f, ins=P("x"), outs=P("x"), m=None):
    return jax.jit(jax.shard_map(f, mesh=m or mesh(), in_specs=ins, out_specs=outs, check_vma=False))


X = np.random.default_rng(0).normal(size=(8, 8, 3)).astype(np.float32)


def pieces(x):
    return np.split(x, N)


@pytest.mark.only_rondo("other platforms share the host's memory")
def test_many_devices_of_small_arrays():
    """Little memory is touched for them, and none of it in large pages."""
    program = """
import jax, numpy as np
def resident(): return int(open("/proc/self/statm").read().split()[1]) * 4096
devices = jax.devices()
before = resident()
held = [jax.block_until_ready(jax.device_put(np.ones(4, np.float32), d)) for d in devices]
print(len(devices), resident() - before)"""
    out = subprocess.run([sys.executable, "-c", program], env={**os.environ, "RONDO_DEVICES": "128"}, capture_output=True, text=True, check=True, timeout=300)
    n, grown = map(int, out.stdout.split())
    assert n == 128 and grown < 64 << 20, grown


def test_there_are_four():
    assert len(jax.devices()) == N
    assert [d.id for d in jax.devices()] == list(range(N))
    assert len({repr(d) for d in jax.devices()}) == N


def test_psum_family():
    x = X
    p = np.stack(pieces(x))
    np.testing.assert_allclose(sharded(lambda x: lax.psum(x, "x"), outs=P())(x), p.sum(0), rtol=1e-5)
    np.testing.assert_allclose(sharded(lambda x: lax.pmean(x, "x"), outs=P())(x), p.mean(0), rtol=1e-5)
    np.testing.assert_array_equal(sharded(lambda x: lax.pmax(x, "x"), outs=P())(x), p.max(0))
    np.testing.assert_array_equal(sharded(lambda x: lax.pmin(x, "x"), outs=P())(x), p.min(0))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bfloat16", "float16", "complex64"])
def test_psum_types(dtype):
    x = jnp.asarray(np.arange(8) % 3, dtype)
    got = sharded(lambda x: lax.psum(x, "x"), outs=P())(x)
    np.testing.assert_array_equal(np.asarray(got, np.complex64), np.asarray(x, np.complex64).reshape(4, 2).sum(0))


def test_gather_scatter_all_to_all():
    np.testing.assert_array_equal(sharded(lambda x: lax.all_gather(x, "x", tiled=True), outs=P())(X), X)
    np.testing.assert_allclose(sharded(lambda x: lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True), outs=P(None, "x"))(X),
                               np.stack(pieces(X)).sum(0), rtol=1e-5)
    y = sharded(lambda x: lax.all_to_all(x, "x", split_axis=1, concat_axis=0, tiled=True), outs=P(None, "x"))(X)
    np.testing.assert_array_equal(y, X)


@pytest.mark.parametrize("pairs", [[(i, (i + 1) % N) for i in range(N)], [(0, 1), (1, 2)], [(0, 3), (3, 0)], [(2, 2)], []])
def test_permute(pairs):
    want = [np.zeros_like(pieces(X)[0])] * N
    for a, b in pairs:
        want[b] = pieces(X)[a]
    np.testing.assert_array_equal(sharded(lambda x: lax.ppermute(x, "x", pairs))(X), np.concatenate(want))


def test_permute_in_a_loop():
    ring = [(i, (i + 1) % N) for i in range(N)]
    f = sharded(lambda x: lax.fori_loop(0, N, lambda i, x: lax.ppermute(x, "x", ring) + 1, x))
    np.testing.assert_allclose(f(X), X + N, rtol=1e-6)


@pytest.mark.parametrize("size", [3, 1000, 70001, 300000])
@pytest.mark.parametrize("pairs", [[(i, (i + 1) % N) for i in range(N)], [(0, 1), (1, 0), (2, 3), (3, 2)], [(0, 2), (2, 3), (1, 0)], [(3, 0), (0, 3), (2, 2)]])
def test_carried_permutes(pairs, size):
    """Carries that are permuted in place; one that is read afterwards; a permuted one that is changed; a donated argument."""

    def move(x):
        return np.stack([next((x[a] for a, b in pairs if b == d), np.zeros_like(x[0])) for d in range(N)])

    def turn(i, c):
        a, b, s, t = c
        s = s + b
        new = lax.ppermute(b, "x", pairs)
        t = t ^ lax.ppermute(t + b, "x", pairs)
        return lax.ppermute(a, "x", pairs), new, s - b * i, t

    x = np.random.default_rng(size).integers(-1000, 1000, (4, N, size)).astype(np.int32)
    f = sharded(lambda a, b, s, t: lax.fori_loop(0, 5, turn, (a, b, s, t)), ins=(P("x"),) * 4, outs=P("x"))
    got = f(*x.reshape(4, -1))
    a, b, s, t = x
    for i in range(5):
        a, b, s, t = move(a), move(b), s + b - b * i, t ^ move(t + b)
    for k, want in zip(got, (a, b, s, t)):
        np.testing.assert_array_equal(np.reshape(k, (N, size)), want)
    y = jax.device_put(x[0].reshape(-1), NamedSharding(mesh(), P("x")))
    g = jax.jit(jax.shard_map(lambda x: lax.ppermute(x, "x", pairs), mesh=mesh(), in_specs=P("x"), out_specs=P("x"), check_vma=False), donate_argnums=0)
    np.testing.assert_array_equal(np.reshape(g(y), (N, size)), move(x[0]))


FOLLOWERS = {
    "tile over the operand": lambda x, s, t: (jnp.tile(s, N) * 0.5, t),
    "tile twice as often": lambda x, s, t: (jnp.tile(s, 2 * N)[: x.size] + 1, t),
    "tile and more": lambda x, s, t: (jnp.tile(s, N) * 0.5, t + s),
    "tile apart": lambda x, s, t: (x + 1, t + jnp.sum(jnp.tile(s * 2, 2)[1:]) * 0 + jnp.tile(s, 3)[: s.size]),
    "step": lambda x, s, t: (x + 1, t - 0.25 * s),
    "over the operand": lambda x, s, t: (x.at[: s.size].set(s * 0.5 + t), t + 1),
}


@pytest.mark.parametrize("size", [4096, 70000, 200000])
@pytest.mark.parametrize("name", list(FOLLOWERS))
def test_what_follows_psum_scatter(name, size):
    from rondo import library

    follow = FOLLOWERS[name]

    def turn(i, c):
        return follow(c[0], lax.psum_scatter(c[0], "x", tiled=True), c[1])

    x = np.random.default_rng(size).integers(-8, 8, (N, N * size)).astype(np.float32)
    t = np.random.default_rng(size + 1).integers(-8, 8, (N, size)).astype(np.float32)
    f = sharded(lambda x, t: lax.fori_loop(0, 3, turn, (x, t)), ins=(P("x"), P("x")), outs=P("x"))
    before = library.followed()
    got = jax.block_until_ready(f(x.reshape(-1), t.reshape(-1)))
    if name in ("tile over the operand", "step") and size > 1 << 15:
        assert library.followed() - before == 3 * N * 4 * size
    for _ in range(3):
        s = x.sum(0).reshape(N, size)
        x, t = (np.stack(v) for v in zip(*[tuple(map(np.asarray, follow(jnp.asarray(x[d]), jnp.asarray(s[d]), jnp.asarray(t[d])))) for d in range(N)]))
    np.testing.assert_allclose(np.reshape(got[0], x.shape), x, rtol=1e-6)
    np.testing.assert_allclose(np.reshape(got[1], t.shape), t, rtol=1e-6)


def normed(x, g=1):
    return (x * lax.rsqrt((x.astype(jnp.float32) ** 2).mean(-1, keepdims=True) + 1e-3).astype(x.dtype)) * g


# s: a sum over devices, x: what this one has added, r and g: the residual and a row of factors.
ROWS = {
    "norm": lambda s, x, r, g: (normed(r + s, g), r + s),
    "norm over the operand": lambda s, x, r, g: (normed(x + s, g), r),
    "of the sum alone": lambda s, x, r, g: (normed(s), r + 1),
    "softmax": lambda s, x, r, g: (jax.nn.softmax(s * 0.1 + r, axis=-1), r),
    "two readers": lambda s, x, r, g: (normed(s + r, g), s * 0.25 - r),
    "another type": lambda s, x, r, g: (s.astype(jnp.bfloat16).astype(s.dtype) * 0.5, normed(s.astype(jnp.float32) + r).astype(s.dtype)),
    "a number of each row": lambda s, x, r, g: (s * 0.5 + r, r + jnp.abs(s).max(-1, keepdims=True)),
    "and the next row": lambda s, x, r, g: (normed(r + s + jnp.pad(s[1:], ((0, 1), (0, 0))), g), r),
    "and the row before": lambda s, x, r, g: (normed(s + jnp.roll(s, 1, 0), g), r + s),
    "and the first row": lambda s, x, r, g: (normed(s + s[:1] + r, g), r),
    "columns": lambda s, x, r, g: (s / (1 + jnp.abs(s).max(0, keepdims=True)), r + s),
    "by turns": lambda s, x, r, g: (normed(s[::-1] + r, g), r),
}


@pytest.mark.parametrize("shape,dtype", [((64, 1024), "float32"), ((33, 1000), "float32"), ((512, 256), "bfloat16"), ((3, 70001), "float32"), ((1, 4096), "bfloat16")])
@pytest.mark.parametrize("name", list(ROWS))
def test_rows_that_follow_psum(name, shape, dtype):
    from rondo import library

    follow, (rows, cols) = ROWS[name], shape

    def turn(i, c):
        x, r, g = c
        return *follow(lax.psum(x, "x"), x, r, g), g

    rng = np.random.default_rng(rows)
    x, r = (np.asarray(rng.integers(-3, 4, (N, rows, cols)), np.float32) for _ in range(2))
    g = jnp.asarray(rng.integers(1, 4, (cols,)), dtype)
    flat = [jnp.asarray(v.reshape(N * rows, cols), dtype) for v in (x, r)]
    turns = sharded(lambda x, r, g: lax.fori_loop(0, 2, turn, (x, r, g))[:2], ins=(P("x"), P("x"), P()))
    before = library.followed()
    got = jax.block_until_ready(turns(*flat, g))
    took = library.followed() - before
    if name in ("norm", "a number of each row") and shape == (64, 1024):
        assert took == 2 * N * 4 * rows * cols
    alone = sharded(lambda s, x, r, g: follow(s, x, r, g), ins=(P("x"), P("x"), P("x"), P()))
    total = sharded(lambda x: lax.psum(x, "x"))
    for _ in range(2):
        flat = alone(total(flat[0]), *flat, g)
    for a, b in zip(got, flat):
        np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=1e-5 if dtype == "float32" else 4e-2, atol=1e-5 if dtype == "float32" else 4e-2)


@pytest.mark.parametrize("n", [2, 100, 1024])
def test_short_sums_are_followed(n):
    """In the slot road, of any size: what is generated for a loop of many turns."""
    from rondo import library

    x = np.random.default_rng(n).integers(-8, 8, (N * n,)).astype(np.float32)
    f = sharded(lambda x: lax.fori_loop(0, 1000, lambda i, v: lax.psum(v, "x") * np.float32(1 / N) + 1, x))
    before = library.followed()
    got = np.asarray(f(x))
    assert library.followed() - before == 1000 * N * n * 4
    np.testing.assert_allclose(got.reshape(N, n), np.tile(x.reshape(N, n).mean(0) + 1000, (N, 1)), rtol=1e-6)


def test_two_axes():
    m = mesh(2, 2, names=("a", "b"))
    f = jax.jit(jax.shard_map(lambda x: (lax.psum(x, "a"), lax.psum(x, "b"), lax.psum(x, ("a", "b")), lax.axis_index("a")[None]),
                              mesh=m, in_specs=P("a", "b"), out_specs=(P(None, "b"), P("a"), P(), P("a")), check_vma=False))
    x = np.arange(16.0, dtype=np.float32).reshape(4, 4)
    a, b, c, i = f(x)
    np.testing.assert_array_equal(a, x[:2] + x[2:])
    np.testing.assert_array_equal(b, x[:, :2] + x[:, 2:])
    np.testing.assert_array_equal(c, x[:2, :2] + x[:2, 2:] + x[2:, :2] + x[2:, 2:])
    np.testing.assert_array_equal(i, [0, 1])


def test_order_of_devices():
    m = jax.sharding.Mesh(np.array(jax.devices())[::-1], ("x",))
    y = sharded(lambda x: x + lax.axis_index("x"), m=m)(np.zeros(8, np.float32))
    np.testing.assert_array_equal(y, np.repeat(np.arange(4.0), 2))
    assert y.addressable_shards[0].device == jax.devices()[3] or y.sharding.mesh.devices[0] == jax.devices()[3]


def test_part_of_the_devices():
    m = jax.sharding.Mesh(np.array(jax.devices())[1:3], ("x",))
    np.testing.assert_array_equal(sharded(lambda x: lax.psum(x, "x"), outs=P(), m=m)(np.arange(4.0)), [2.0, 4.0])


def test_gradient_through_collectives():
    f = lambda x: (sharded(lambda x: jnp.sin(lax.psum(x, "x")), outs=P())(x) ** 2).sum()
    s = np.stack(pieces(X)).sum(0)
    np.testing.assert_allclose(jax.grad(f)(X), np.tile(2 * np.sin(s) * np.cos(s), (4, 1, 1)), rtol=1e-4, atol=1e-5)


def test_data_dependent_loop_with_collectives():
    def f(x):
        return lax.while_loop(lambda x: lax.psum(x.sum(), "x") < 100, lambda x: x * 2, x)
    x = np.ones(4, np.float32)
    np.testing.assert_array_equal(sharded(f)(x), x * 32)


def ring_attention(q, k, v):
    n, me, t = lax.axis_size("x"), lax.axis_index("x"), q.shape[0]
    row = me * t + jnp.arange(t)

    def turn(c, i):
        k, v, m, l, acc = c
        s = q @ k.T
        s = jnp.where(row[:, None] >= (me - i) % n * t + jnp.arange(t), s, -1e30)
        m2 = jnp.maximum(m, s.max(-1))
        p, old = jnp.exp(s - m2[:, None]), jnp.exp(m - m2)
        k, v = (lax.ppermute(a, "x", [(j, (j + 1) % n) for j in range(n)]) for a in (k, v))
        return (k, v, m2, l * old + p.sum(-1), acc * old[:, None] + p @ c[1]), None

    start = jnp.full(t, -1e30), jnp.zeros(t), jnp.zeros_like(q)
    (_, _, _, l, acc), _ = lax.scan(turn, (k, v, *start), jnp.arange(n))
    return acc / l[:, None]


def test_ring_attention():
    q, k, v = np.random.default_rng(1).normal(size=(3, 32, 8)).astype(np.float32)
    f = sharded(ring_attention, ins=(P("x"),) * 3)

    def plain(q, k, v):
        return jax.nn.softmax(jnp.where(np.tri(32, dtype=bool), q @ k.T, -1e30)) @ v

    np.testing.assert_allclose(f(q, k, v), plain(q, k, v), rtol=1e-4, atol=1e-5)
    g = jax.grad(lambda *a: (f(*a) ** 2).sum(), (0, 1, 2))(q, k, v)
    w = jax.grad(lambda *a: (plain(*a) ** 2).sum(), (0, 1, 2))(q, k, v)
    for a, b in zip(g, w):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_calls_in_flight():
    f = sharded(lambda x: lax.psum(jnp.sin(x), "x") * 0.25 + x * 0)
    x = jax.device_put(X, NamedSharding(mesh(), P("x")))
    for _ in range(50):
        x = f(x)
    assert np.isfinite(np.asarray(x)).all()


def test_replicated_jit():
    r = NamedSharding(mesh(), P())
    f = jax.jit(lambda x: jnp.sin(x).sum(), in_shardings=r, out_shardings=r)
    np.testing.assert_allclose(f(X), np.sin(X).sum(), rtol=1e-5)


def gone(f, *args, **how):
    """Which arguments, all sharded and donated, are deleted by a call."""
    args = [jax.device_put(a, NamedSharding(mesh(), P("x"))) for a in args]
    jax.block_until_ready(jax.jit(f, donate_argnums=tuple(range(len(args))), **how)(*args))
    return [a.is_deleted() for a in args]


@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_what_no_result_takes_stays():
    a, b = np.arange(16, dtype=np.float32), np.arange(16, dtype=np.int32)
    assert gone(lambda x: x + 1, a) == [True]
    assert gone(lambda x: x.sum(), a) == [False]
    assert gone(lambda x: x[:, None] * x, a) == [False]
    assert gone(lambda x: x.reshape(4, 4), a) == [True]
    assert gone(lambda x: x.astype(np.int32), a) == [True]
    assert gone(lambda x, y: x + y, a, a) == [True, False]
    assert gone(lambda x, y: (x + y, x[:4]), a, a[:4].repeat(4)) == [True, False]
    assert gone(lambda x, y: (x * 2, y * 2), a, b) == [True, True]
    assert gone(lambda x: (x.sum(), x.astype(np.float16)), a) == [False]


def test_donation_of_sharded_arrays():
    s = NamedSharding(mesh(), P("x"))
    f = jax.jit(jax.shard_map(lambda x: x + 1, mesh=mesh(), in_specs=P("x"), out_specs=P("x")), donate_argnums=0)
    x = jax.device_put(X, s)
    y = f(x)
    assert x.is_deleted()
    np.testing.assert_allclose(y, X + 1)


def test_threads():
    import concurrent.futures
    m = [jax.sharding.Mesh(np.array(jax.devices())[list(ids)], ("x",)) for ids in ((0, 1), (1, 2), (2, 3, 0, 1))]

    def work(k):
        f = sharded(lambda x: x * 0 + lax.psum(x.sum(), "x"), m=m[k])
        x = np.ones(8, np.float32)
        for _ in range(20):
            np.testing.assert_array_equal(f(x), np.full(8, 8.0))

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
