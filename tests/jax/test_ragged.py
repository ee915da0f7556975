"""jax.lax.ragged_all_to_all: rows that data name, against NumPy.  XLA:CPU does not have it."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

N = 4
pytestmark = pytest.mark.only_rondo("XLA:CPU does not have it")


def mesh(*shape, names=("x",)):
    return jax.sharding.Mesh(np.array(jax.devices()).reshape(shape or (N,)), names)


def sharded(f, ins=P("x"), outs=P("x"), m=None, **how):
    return jax.jit(jax.shard_map(f, mesh=m or mesh(), in_specs=ins, out_specs=outs, check_vma=False, **how))


def ragged(x, y, i, s, o, r, **how):
    return lax.ragged_all_to_all(x, y, i, s, o, r, **{"axis_name": "x", **how})


def moved(x, y, i, s, o, r, groups=(tuple(range(N)),)):
    """Operands of all devices -> results.  A slice has as many rows as both say; a row that either array does not have stays away; the later slice is there."""
    y = y.copy()
    for g in groups:
        k = i.shape[1] // len(g)
        for b, me in enumerate(g):
            for a, other in enumerate(g):
                for c in range(k):
                    n, of, to = min(int(s[other, b * k + c]), int(r[me, a * k + c])), int(i[other, b * k + c]), int(o[other, b * k + c])
                    for at in range(max(to, 0), min(to + n, y.shape[1])):
                        if 0 <= at - to + of < x.shape[1]:
                            y[me, at] = x[other, at - to + of]
    return y


def sound(rng, rows, room, k=N, groups=(tuple(range(N)),), dtype=np.int32):
    """Offsets and sizes that agree and do not overlap, with gaps."""
    i, s, o, r = np.zeros((4, sum(map(len, groups)), k), np.int64)
    for g in groups:
        each = k // len(g)
        for a in g:
            cut = np.sort(rng.integers(0, rows + 1, 2 * k))
            i[a], s[a] = cut[::2], cut[1::2] - cut[::2]
        for b, me in enumerate(g):
            at, left = 0, room
            for a, other in enumerate(g):
                for c in range(each):
                    n = min(int(s[other, b * each + c]), left)
                    gap = int(rng.integers(0, left - n + 1)) // (2 * k)
                    s[other, b * each + c] = r[me, a * each + c] = n
                    o[other, b * each + c] = at + gap
                    at, left = at + gap + n, left - gap - n
    return tuple(v.astype(dtype) for v in (i, s, o, r))


def flat(*a):
    return [v.reshape(-1, *v.shape[2:]) for v in a]


def numbers(rng, shape, dtype):
    d = jnp.dtype(dtype)
    if d.name == "bool":
        return rng.random(shape) < 0.5
    if d.kind == "c":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(d)
    if jnp.issubdtype(d, jnp.floating):
        return rng.normal(size=shape).astype(np.float32).astype(d)
    return rng.integers(0 if d.name.startswith("u") else -8, 8, size=shape).astype(d)


TYPES = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int4", "uint4", "bool", "complex64"]


@pytest.mark.parametrize("dtype", TYPES)
def test_types(dtype):
    rng = np.random.default_rng(TYPES.index(dtype))
    for shape in [(), (5,), (3, 64)]:
        x, y = numbers(rng, (N, 13, *shape), dtype), numbers(rng, (N, 20, *shape), dtype)
        w = sound(rng, 13, 20)
        got = np.asarray(sharded(ragged, (P("x"),) * 6)(*flat(x, y, *w)))
        np.testing.assert_array_equal(got.reshape(y.shape), moved(x, y, *w))


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "complex128"])
def test_types_of_64_bits(dtype, x64):
    rng = np.random.default_rng(5)
    x, y, w = numbers(rng, (N, 13, 5), dtype), numbers(rng, (N, 20, 5), dtype), sound(rng, 13, 20, dtype=np.int64)
    np.testing.assert_array_equal(np.asarray(sharded(ragged, (P("x"),) * 6)(*flat(x, y, *w))).reshape(y.shape), moved(x, y, *w))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_types_of_offsets(dtype):
    rng = np.random.default_rng(3)
    x, y, w = numbers(rng, (N, 40, 2), "float32"), numbers(rng, (N, 50, 2), "float32"), sound(rng, 40, 50, 2 * N, dtype=dtype)
    np.testing.assert_array_equal(np.asarray(sharded(ragged, (P("x"),) * 6)(*flat(x, y, *w))).reshape(y.shape), moved(x, y, *w))


@pytest.mark.parametrize("seed", range(6))
def test_any_numbers(seed):
    """Outside, negative, sizes that do not agree, slices over each other: what is told is done as far as it can be, and nothing else is touched."""
    rng = np.random.default_rng(seed)
    x, y = numbers(rng, (N, 11, 3), "float32"), numbers(rng, (N, 17, 3), "float32")
    w = rng.integers(-6, 24, size=(4, N, 2 * N)).astype(np.int32)
    odd = np.array([np.iinfo(np.int32).min, np.iinfo(np.int32).max, -1, 0], np.int32)
    w = np.where(rng.random(w.shape) < 0.2, odd[rng.integers(len(odd), size=w.shape)], w)
    f = sharded(ragged, (P("x"),) * 6)
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(f(*flat(x, y, *w))).reshape(y.shape), moved(x, y, *w))


def test_empty():
    rng = np.random.default_rng(0)
    for rows, room in [(0, 5), (5, 0), (0, 0)]:
        x, y, w = numbers(rng, (N, rows, 2), "float32"), numbers(rng, (N, room, 2), "float32"), rng.integers(0, 5, (4, N, N)).astype(np.int32)
        np.testing.assert_array_equal(np.asarray(sharded(ragged, (P("x"),) * 6)(*flat(x, y, *w))).reshape(y.shape), y)


@pytest.mark.parametrize("rows, wide, dtype", [(1000, 7, "float32"), (4096, 512, "bfloat16"), (30000, 33, "float32")])
def test_large(rows, wide, dtype):
    rng = np.random.default_rng(rows)
    x, y = numbers(rng, (N, rows, wide), dtype), numbers(rng, (N, 2 * rows, wide), dtype)
    f = sharded(ragged, (P("x"),) * 6)
    for seed in range(3):
        w = sound(np.random.default_rng(seed), rows, 2 * rows)
        np.testing.assert_array_equal(np.asarray(f(*flat(x, y, *w))).reshape(y.shape), moved(x, y, *w))


@pytest.mark.parametrize("rows, wide", [(16, 3), (4000, 40)])
def test_gradient(rows, wide):
    rng = np.random.default_rng(1)
    room = rows + 9
    x, y, c = numbers(rng, (N, rows, wide), "float32"), numbers(rng, (N, room, wide), "float32"), numbers(rng, (N, room, wide), "float32")
    s = rng.integers(1, rows // N + 1, (N, N)).astype(np.int32)       # none is empty: JAX's mask of what is not written over loses a slice that begins where an empty one does
    i = np.tile(np.arange(N, dtype=np.int32) * (rows // N), (N, 1))
    o, r = (np.cumsum(s, 0) - s + 2).astype(np.int32), np.ascontiguousarray(s.T)
    w = i, s, o, r
    f = sharded(ragged, (P("x"),) * 6)
    dx, dy = jax.jit(jax.grad(lambda x, y, c, *w: (jnp.sin(f(x, y, *w)) * c).sum(), (0, 1)))(*flat(x, y, c, *w))
    z = np.cos(moved(x, y, *w)) * c
    np.testing.assert_allclose(np.asarray(dx).reshape(x.shape), moved(z, np.zeros_like(x), o.T, r, i.T, s), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(dy).reshape(y.shape), z * (1 - moved(np.ones_like(x), np.zeros_like(y), *w)), rtol=1e-5, atol=1e-6)


def test_loops_and_branches():
    rng = np.random.default_rng(2)
    x, w = numbers(rng, (N, 12, 4), "float32"), sound(rng, 12, 12)

    def f(x, *w):
        def turn(v, k):
            far = lax.cond(k % 3 == 0, lambda v: ragged(v, v * 0.5, *w), lambda v: ragged(v * 2, jnp.zeros_like(v), *w), v)
            return far + 1, far[:2]
        return lax.scan(turn, x, jnp.arange(7))
    got, rows = sharded(f, (P("x"),) * 5, (P("x"), P(None, "x")))(*flat(x, *w))
    v = x
    for k in range(7):
        far = moved(v, v * np.float32(0.5), *w) if k % 3 == 0 else moved(v * 2, np.zeros_like(v), *w)
        np.testing.assert_array_equal(np.asarray(rows)[k].reshape(N, 2, 4), far[:, :2])
        v = far + 1
    np.testing.assert_array_equal(np.asarray(got).reshape(x.shape), v)


def test_carried_output():
    """The output is a carry: each turn writes a few rows of it, where it lies."""
    rng = np.random.default_rng(4)
    x, y = numbers(rng, (N, 6, 300), "float32"), numbers(rng, (N, 64, 300), "float32")
    w = [sound(np.random.default_rng(k), 6, 64) for k in range(5)]

    def f(x, y, *w):
        return lax.scan(lambda y, w: (ragged(x, y, *w), None), y, w)[0]
    got = jax.jit(jax.shard_map(f, mesh=mesh(), in_specs=(P("x"), P("x"), *[P(None, "x")] * 4), out_specs=P("x"), check_vma=False), donate_argnums=1)(
        *flat(x, y), *[np.stack([v[k].reshape(-1) for v in w]) for k in range(4)])
    for v in w:
        y = moved(x, y, *v)
    np.testing.assert_array_equal(np.asarray(got).reshape(y.shape), y)


@pytest.mark.parametrize("over", [(0, 0, 0, 0, 0, 0), (None, 0, 0, 0, 0, 0), (1, None, 1, 0, 0, 1)])        # numbers that are the same for all JAX does not take
def test_vmap(over):
    rng = np.random.default_rng(6)
    x, y, w = numbers(rng, (N, 3, 10, 2), "float32"), numbers(rng, (N, 3, 15, 2), "float32"), [sound(rng, 10, 15) for _ in range(3)]
    w = [np.stack([v[k] for v in w], 1) for k in range(4)]           # [device, 3, N]
    args = [x, y, *w]
    args = [a[:, 0] if d is None else np.moveaxis(a, 1, 1 + d) for a, d in zip(args, over)]
    got = sharded(lambda *a: jax.vmap(ragged, over)(*[v[0] for v in a])[None], (P("x"),) * 6)(*args)
    for b in range(3):
        one = [a if d is None else np.take(a, b, 1 + d) for a, d in zip(args, over)]
        np.testing.assert_array_equal(np.asarray(got)[:, b], moved(*one))


@pytest.mark.parametrize("groups", [((0, 1), (2, 3)), ((3, 1), (0, 2)), ((0,), (1,), (2,), (3,))])
def test_groups(groups):
    rng = np.random.default_rng(7)
    x, y, w = numbers(rng, (N, 10, 2), "float32"), numbers(rng, (N, 15, 2), "float32"), sound(rng, 10, 15, 4, groups)
    got = sharded(lambda *a: ragged(*a, axis_index_groups=groups), (P("x"),) * 6)(*flat(x, y, *w))
    np.testing.assert_array_equal(np.asarray(got).reshape(y.shape), moved(x, y, *w, groups))


@pytest.mark.parametrize("axes, groups", [("a", ((0, 2), (1, 3))), ("b", ((0, 1), (2, 3))), (("a", "b"), ((0, 1, 2, 3),)), (("b", "a"), ((0, 2, 1, 3),))])
def test_axes(axes, groups):
    rng = np.random.default_rng(8)
    x, y, w = numbers(rng, (N, 10, 2), "float32"), numbers(rng, (N, 15, 2), "float32"), sound(rng, 10, 15, 4, groups)
    got = sharded(lambda *a: ragged(*a, axis_name=axes), (P(("a", "b")),) * 6, P(("a", "b")), mesh(2, 2, names=("a", "b")))(*flat(x, y, *w))
    np.testing.assert_array_equal(np.asarray(got).reshape(y.shape), moved(x, y, *w, groups))


def test_beside_automatic_axes():
    """Rows are cut along an axis that the partitioner has."""
    rng = np.random.default_rng(9)
    m = jax.make_mesh((2, 2), ("x", "m"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    g = ((0, 1),)
    x, y, w = numbers(rng, (2, 10, 8), "float32"), numbers(rng, (2, 15, 8), "float32"), sound(rng, 10, 15, 2, g)
    f = jax.jit(jax.shard_map(ragged, mesh=m, in_specs=(P("x"),) * 6, out_specs=P("x"), axis_names={"x"}, check_vma=False))
    fx, fy, *fw = flat(x, y, *w)
    cut = NamedSharding(m, P("x", "m"))
    got = f(jax.device_put(fx, cut), jax.device_put(fy, cut), *fw)
    np.testing.assert_array_equal(np.asarray(got).reshape(y.shape), moved(x, y, *w, g))
    assert got.sharding.is_equivalent_to(cut, 2), got.sharding


@pytest.mark.parametrize("n", [1, 2, 3])
def test_fewer_devices(n):
    rng = np.random.default_rng(10)
    g = (tuple(range(n)),)
    x, y, w = numbers(rng, (n, 10, 2), "float32"), numbers(rng, (n, 15, 2), "float32"), sound(rng, 10, 15, 2 * n, g)
    m = jax.sharding.Mesh(np.array(jax.devices()[:n]), ("x",))
    np.testing.assert_array_equal(np.asarray(sharded(ragged, (P("x"),) * 6, m=m)(*flat(x, y, *w))).reshape(y.shape), moved(x, y, *w, g))


def test_what_is_sent_is_read_later():
    """The operand is written again when the others have read it."""
    rng = np.random.default_rng(11)
    x, w = numbers(rng, (N, 3000, 64), "float32"), sound(rng, 3000, 3000)
    f = jax.jit(jax.shard_map(lambda x, *w: lax.fori_loop(0, 20, lambda k, v: ragged(v, v, *w) + 1, x), mesh=mesh(), in_specs=(P("x"),) * 5, out_specs=P("x"), check_vma=False), donate_argnums=0)
    v = x
    for _ in range(20):
        v = moved(v, v, *w) + 1
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(f(*flat(x, *w))).reshape(x.shape), v)
