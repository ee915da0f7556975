"""Arrays that lie otherwise than row-major (jax.experimental.layout): the same numbers, and they lie as was said."""
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P, SingleDeviceSharding

ONE = SingleDeviceSharding(jax.devices()[0])
number = random.Random()


def order(rank):
    return tuple(number.sample(range(rank), rank))


def lies(x):
    return x.format.layout.major_to_minor


def some(shape, dtype):
    return np.random.default_rng(number.randrange(1 << 30)).integers(0, 2 if dtype == "bool" else 8, shape).astype(dtype)


STEPS = [lambda x, y: x + y, lambda x, y: jnp.where(x > y, x, y) if x.dtype != "complex64" else x - y, lambda x, y: x[::-1], lambda x, y: jnp.concatenate([x, y], -1)[..., ::2],
         lambda x, y: jnp.moveaxis(jnp.moveaxis(x, 0, -1) * 2, -1, 0), lambda x, y: x.sum(0, keepdims=True) + y, lambda x, y: x @ jnp.swapaxes(y, -1, -2) @ y,
         lambda x, y: x.reshape(-1).reshape(x.shape), lambda x, y: lax.dynamic_update_slice_in_dim(x, y[..., :1], 1, x.ndim - 1), lambda x, y: lax.sort(x, dimension=0),
         lambda x, y: lax.fori_loop(0, 3, lambda i, a: a + y, x), lambda x, y: x.at[..., 0].add(y[..., 1])]


@pytest.mark.parametrize("seed", range(24))
def test_random(seed):
    """A few operations on arrays that lie in any order, whose results do."""
    number.seed(seed)
    rank = number.randrange(2, 5)
    shape = tuple(number.choice([2, 3, 8, 16]) for _ in range(rank))
    dtype = number.choice(["float32", "int32", "int8", "float16", "bfloat16", "complex64"])
    x, y = some(shape, dtype), some(shape, dtype)
    steps = number.sample([f for f in STEPS if dtype != "complex64" or f is not STEPS[9]], 3)

    def f(x, y):
        for step in steps:
            x = step(x, y).astype(x.dtype)
        return x, (x + 1).T, y

    orders = [order(rank) for _ in range(5)]
    ins, outs = [Format(Layout(o), ONE) for o in orders[:2]], tuple(Format(Layout(o), ONE) for o in orders[2:])
    args = [jax.device_put(a, i) for a, i in zip((x, y), ins, strict=True)]
    assert [lies(a) for a in args] == orders[:2]
    got, want = jax.jit(f, out_shardings=outs)(*args), jax.jit(f)(*[jax.device_put(a, ONE) for a in (x, y)])
    for g, w, o in zip(got, want, orders[2:], strict=True):
        assert lies(g) == o
        np.testing.assert_array_equal(np.asarray(g), np.asarray(w))
    for a, b in zip(args, (x, y), strict=True):
        np.testing.assert_array_equal(np.asarray(a), b)


@pytest.mark.parametrize("spec,ways", [(("x", None), (4,)), ((None, "x"), (4,)), (("y", "x"), (2, 2)), ((("x", "y"), None), (2, 2))])
def test_sharded(spec, ways):
    """What a device holds lies in that order, whichever dimension is cut."""
    mesh = jax.make_mesh(ways, ("x", "y")[:len(ways)], devices=jax.devices()[:4], axis_types=(AxisType.Auto,) * len(ways))
    s, t = NamedSharding(mesh, P(*spec)), NamedSharding(mesh, P(*reversed(spec)))
    x = np.arange(8 * 12, dtype=np.float32).reshape(8, 12)
    a = jax.device_put(x, Format(Layout((1, 0)), s))
    for f, want, out in [(lambda x: x * 2, x * 2, Format(Layout((0, 1)), s)), (lambda x: x.T, x.T, Format(Layout((1, 0)), t)),
                         (lambda x: x @ x.T, x @ x.T, Format(Layout((1, 0)), NamedSharding(mesh, P()))), (lambda x: x.sum(0), x.sum(0), None), (lambda x: x + 1, x + 1, Format(Layout((1, 0)), t))]:
        got = jax.jit(f, out_shardings=out)(a)
        np.testing.assert_array_equal(np.asarray(got), want)
        assert not out or (lies(got), got.sharding) == (out.layout.major_to_minor, out.sharding)
        for shard in got.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), want[shard.index])
            assert not out or lies(shard.data) == out.layout.major_to_minor


@pytest.mark.parametrize("shape", [(4, 3, 2), (300, 1000), (64, 2, 700), (1, 5, 1), (0, 3), (129, 65, 3, 2)])
def test_copies(shape):
    """To the host and back, to other devices and memories, by pieces, as another's array."""
    number.seed(str(shape))
    for dtype in ("float32", "int8", "float64" if jax.config.jax_enable_x64 else "complex64", "int4"):
        o = order(len(shape))
        x = some(shape, dtype)
        a = jax.device_put(x, Format(Layout(o), ONE))
        assert lies(a) == o
        for b in [a, jax.device_put(a, jax.devices()[1]), jax.device_put(a, ONE.with_memory_kind("pinned_host")), jax.device_put(a, jax.devices("cpu")[0]), jnp.copy(a), a[...]]:
            np.testing.assert_array_equal(np.asarray(b), x)
        np.testing.assert_array_equal(np.asarray(a[1:]), x[1:])
    y = np.asfortranarray(some(shape, "float32"))
    for z in (y, y[::-1], y.T):
        np.testing.assert_array_equal(np.asarray(jax.device_put(z, ONE)), z)
    np.testing.assert_array_equal(np.asarray(jax.dlpack.from_dlpack(y)), y)


@pytest.mark.only_rondo("XLA:CPU chooses otherwise")
def test_open():
    """What is left open: a result lies as what it is made of."""
    x = jax.device_put(np.arange(24, dtype=np.float32).reshape(2, 3, 4), ONE)
    open_ = Format(Layout.AUTO)
    y = jax.jit(lambda x: jnp.sin(x.transpose(2, 0, 1)) * 2, out_shardings=open_)(x)
    assert lies(y) == (1, 2, 0)
    assert lies(jax.jit(lambda y: y + 1, out_shardings=open_)(y)) == (1, 2, 0)
    assert lies(jax.jit(lambda y: y.transpose(1, 2, 0), out_shardings=open_)(y)) == (0, 1, 2)
    assert lies(jax.jit(lambda x: x, out_shardings=open_)(x)) == (0, 1, 2)
    np.testing.assert_allclose(np.asarray(y), np.sin(np.asarray(x).transpose(2, 0, 1)) * 2, rtol=1e-6)


def test_donated():
    """An array's memory goes on, in the same order or in another."""
    x = some((8, 12), "float32")
    for there, back in [((1, 0), (1, 0)), ((1, 0), (0, 1)), ((0, 1), (1, 0))]:
        f = jax.jit(lambda x: x * 3 + x[::-1], out_shardings=Format(Layout(back), ONE), donate_argnums=0)
        for _ in range(2):
            got = f(jax.device_put(x, Format(Layout(there), ONE)))
            assert lies(got) == back
            np.testing.assert_array_equal(np.asarray(got), x * 3 + x[::-1])


@pytest.mark.only_rondo("XLA:CPU takes the one for the other")
def test_not_asked_for():
    """JAX does not tell the compiler how an array lies that is not committed."""
    x = jax.jit(lambda x: x.T, out_shardings=Format(Layout.AUTO))(jnp.ones((4, 3)))
    assert lies(x) == (1, 0) and not x.committed
    with pytest.raises(Exception, match=r"parameter 0 of 'jit__lambda' lies in memory as \{0,1\}, the program wants it as \{1,0\}"):
        jax.jit(lambda x: x + 1)(x)
    np.testing.assert_array_equal(jax.jit(lambda x: x + 1)(jax.device_put(x, x.sharding)), np.full((3, 4), 2))


@pytest.mark.only_rondo
def test_refused():
    x = jnp.zeros((16, 256))
    with pytest.raises(Exception, match=r"result 0 of program 'jit__lambda', f32\[16,256\], has the layout '\{1,0:T\(8,128\)\}': those that order the dimensions are known"):
        jax.jit(lambda x: x, out_shardings=Format(Layout((0, 1), tiling=((8, 128),)), ONE))(x)


def test_kept():
    """A compiled program that was written to a file."""
    from jax.experimental import serialize_executable as se
    o = Format(Layout((1, 0)), ONE)
    x = some((5, 7), "float32")
    a = jax.device_put(x, o)
    c = jax.jit(lambda a: a * 2, out_shardings=o).lower(a).compile()
    again = se.deserialize_and_load(*se.serialize(c), execution_devices=jax.devices()[:1])
    assert lies(again(a)) == again.input_formats[0][0].layout.major_to_minor == (1, 0)
    np.testing.assert_array_equal(np.asarray(again(a)), x * 2)
