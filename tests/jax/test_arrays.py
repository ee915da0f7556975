"""Arrays between host and devices: types, strides, copies, donation, deletion, memories."""
import gc
import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

TYPES = ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32", "bfloat16", "complex64",
         "float8_e5m2", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e4m3",
         "float8_e3m4", "float8_e8m0fnu", "float4_e2m1fn", "int4", "uint4", "int2", "uint2"]
WIDE = ["int64", "uint64", "float64", "complex128"]


def sample(name, shape):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    rng = np.random.default_rng(3)
    if name in ("bool", "uint2", "uint4"):
        return rng.integers(0, 2, shape).astype(dtype)
    if name.startswith("complex"):
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    return rng.integers(0 if name.startswith("u") or "e8m0" in name else -2, 2, shape).astype(dtype)


@pytest.mark.parametrize("name", TYPES)
def test_round_trip(name):
    x = sample(name, (3, 5))
    y = jnp.asarray(x)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(y).view(np.uint8), x.view(np.uint8))


@pytest.mark.parametrize("name", WIDE)
def test_round_trip_wide(name, x64):
    x = sample(name, (3, 5))
    np.testing.assert_array_equal(np.asarray(jnp.asarray(x)), x)


@pytest.mark.parametrize("name", TYPES)
def test_through_program(name):
    x = sample(name, (4, 3))
    y = jax.jit(lambda x: x.T.reshape(2, 6))(x)
    np.testing.assert_array_equal(np.asarray(y).astype(np.complex64), x.T.reshape(2, 6).astype(np.complex64))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 1, 1, 1, 1, 1)])
def test_shapes(shape):
    x = np.full(shape, 2.5, np.float32)
    np.testing.assert_array_equal(jax.jit(lambda x: x + 1)(x), x + 1)


def test_strides():
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (x[::2], x[:, ::-1], x.T, x[1:, 2:4], np.broadcast_to(x[0], (3, 6)), x[::-2, ::-3]):
        np.testing.assert_array_equal(jnp.asarray(view), view)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "complex64", "uint32"])
@pytest.mark.parametrize("shape", [(130, 70), (5, 200, 3), (67, 3, 130), (2, 65, 4, 33), (300, 301)])
def test_views(shape, dtype):
    """Dimensions in any order, with steps and backwards, from the host and inside a program: elements of all sizes, more than a block of them."""
    x = np.random.default_rng(shape).integers(0, 100, shape).astype(dtype)
    steps = (1,) * 4, (2, 1, 1, 1), (1, 2, -1, 3), (-3, 2, 2, 1)
    for k, perm in enumerate(itertools.permutations(range(len(shape)))):
        cut = tuple(slice(None, None, s) for s in steps[k % 4][: len(shape)])
        want = x[cut].transpose(perm)
        np.testing.assert_array_equal(jax.device_put(want), want)
        if k % 5 < 2:
            np.testing.assert_array_equal(jax.jit(lambda x: x[cut].transpose(perm))(x), want)


def test_elements_of_records():
    """They lie where no multiple of their size is."""
    x = np.zeros((70, 66), [("tag", "u1"), ("value", "<f4"), ("more", "<i2")])
    x["value"], x["more"] = np.arange(70 * 66).reshape(70, 66), -np.arange(70 * 66).reshape(70, 66)
    for field in ("value", "more"):
        for view in (x[field], x[field].T, x[field][::-2, 3:]):
            np.testing.assert_array_equal(jax.device_put(view), view)


def test_numpy_is_not_aliased_by_results():
    x = np.ones(1000, np.float32)
    y = jax.device_put(x)
    y.block_until_ready()
    z = jax.jit(lambda x: x * 2, donate_argnums=0)(jnp.array(x))
    x[:] = 7
    np.testing.assert_array_equal(z, np.full(1000, 2, np.float32))


def test_views_without_copy_stay_valid():
    y = jax.jit(lambda x: x + 1)(jnp.arange(1000.0))
    view = np.asarray(y)
    assert not view.flags.writeable
    del y
    gc.collect()
    [jax.jit(lambda x: x * 3)(jnp.arange(1000.0)) for _ in range(10)]
    np.testing.assert_array_equal(view, np.arange(1000) + 1)


def test_donation():
    f = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.zeros(1 << 16)
    y = f(x)
    assert x.is_deleted()
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(x)
    assert float(y.sum()) == 1 << 16


def test_donation_in_place():
    f = jax.jit(lambda c, r, i: jax.lax.dynamic_update_slice(c, r, (i, 0)), donate_argnums=0)
    c = jnp.zeros((512, 64), jnp.bfloat16)
    r = jnp.ones((1, 64), jnp.bfloat16)
    for i in range(4):
        c = f(c, r, i)
    expect = np.zeros((512, 64), np.float32)
    expect[:4] = 1
    np.testing.assert_array_equal(np.asarray(c, np.float32), expect)


def test_donation_of_what_is_seen_from_outside():
    x = jax.jit(lambda n: jnp.full(4096, n))(3.0)
    view = np.asarray(x)
    y = jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    np.testing.assert_array_equal(view, np.full(4096, 3.0))
    np.testing.assert_array_equal(y, np.full(4096, 4.0))


@pytest.mark.only_rondo("XLA:CPU refuses")
def test_donated_and_used_twice():
    f = jax.jit(lambda a, b: (a + 1, b * 2), donate_argnums=0)
    x = jnp.full(100, 3.0)
    a, b = f(x, x)
    np.testing.assert_array_equal(a, np.full(100, 4.0))
    np.testing.assert_array_equal(b, np.full(100, 6.0))


def test_delete():
    x = jnp.arange(10)
    y = x + 1
    x.delete()
    assert x.is_deleted()
    np.testing.assert_array_equal(y, np.arange(10) + 1)


def test_between_devices():
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    for d in jax.devices():
        y = jax.device_put(x, d)
        for e in jax.devices():
            z = jax.device_put(y, e)
            assert z.devices() == {e}
            np.testing.assert_array_equal(z, x)


def test_copy_of_what_is_still_computed():
    d = jax.devices()
    f = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda i, x: jnp.sin(x @ x), x))
    for _ in range(5):
        y = f(jnp.eye(100))
        z = jax.device_put(y, d[-1])
        w = jax.device_put(z, d[0])
        del z
        np.testing.assert_array_equal(w, y)


def test_memory_kinds():
    d = jax.devices()[0]
    assert {m.kind for m in d.addressable_memories()} >= {"device", "pinned_host", "unpinned_host"}
    assert d.default_memory().kind == "device"
    s = jax.sharding.SingleDeviceSharding(d, memory_kind="pinned_host")
    x = jax.device_put(np.arange(8), s)
    assert x.sharding.memory_kind == "pinned_host"
    y = jax.device_put(x, jax.sharding.SingleDeviceSharding(d, memory_kind="device"))
    np.testing.assert_array_equal(y, np.arange(8))


@pytest.mark.only_rondo("XLA:CPU has no memory statistics")
def test_memory_stats():
    d = jax.devices()[0]
    x = jax.device_put(np.zeros(1 << 20, np.float32), d)
    before = d.memory_stats()["bytes_in_use"]
    assert before >= x.nbytes
    x.delete()
    del x
    assert d.memory_stats()["bytes_in_use"] <= before - (1 << 22)
    assert d.memory_stats()["bytes_limit"] > 0


@pytest.mark.only_rondo("XLA:CPU would try")
def test_out_of_memory():
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        jax.jit(lambda: jnp.zeros((1 << 46,), jnp.int8))().block_until_ready()
    np.testing.assert_array_equal(jnp.arange(3) + 1, [1, 2, 3])


def test_errors_travel():
    def boom(x):
        raise ValueError("the callback failed")

    f = jax.jit(lambda x: jax.pure_callback(boom, jax.ShapeDtypeStruct((4,), np.float32), x))
    g = jax.jit(lambda x: x * 2)
    with pytest.raises(Exception, match="the callback failed"):
        y = f(jnp.ones(4))
        g(g(y)).block_until_ready()


@pytest.mark.parametrize("narrow", [jnp.int4, jnp.uint4])
@pytest.mark.parametrize("wide", [jnp.uint8, jnp.int16, jnp.float32])
def test_nibbles_seen_otherwise(narrow, wide):
    parts = jnp.dtype(wide).itemsize * 2
    x = jnp.arange(3 * 4 * parts).reshape(3, 4 * parts).astype(narrow)
    low = np.asarray(x.astype(jnp.int32)) & 15
    packed = (low[:, ::2] | low[:, 1::2] << 4).astype(np.uint8).view(wide)
    y = jax.jit(lambda x: x.view(wide))(x)
    assert np.asarray(y).tobytes() == packed.tobytes()
    assert (jax.jit(lambda y: y.view(narrow))(y) == x).all()


def test_powers_of_two_have_no_zero():
    """What float8_e8m0fnu makes of ties, of what is too large, and of what it has not."""
    x = np.array([12, 3, 0.75, 1.5, 1.49, 6, 0, -0.0, -1, 2.0**-127, 1.25 * 2.0**-127, 2.0**-149, 1.5 * 2.0**127, np.inf, np.nan], np.float32)
    y = jax.jit(lambda x: x.astype(jnp.float8_e8m0fnu))(x)
    np.testing.assert_array_equal(np.asarray(y).view(np.uint8), x.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8))


def test_dlpack():
    """What others hold goes to the default device, or stays where it is if it shall not be copied; what others take is shared."""
    x = np.arange(4096, dtype=np.float32)
    y = jnp.from_dlpack(x)
    assert y.devices() == {jax.devices()[0]} and jax.dlpack.from_dlpack(x).devices() == {jax.devices()[0]}
    np.testing.assert_array_equal(y, x)
    assert jnp.from_dlpack(y).devices() == y.devices()
    if jax.devices()[0].platform == "rondo":
        assert jnp.from_dlpack(x, copy=True).devices() == {jax.devices()[0]}
        room = np.zeros(4096 + 16, np.float32)
        x = room[-room.ctypes.data // 4 % 16:][:4096]                  # where JAX's cpu can have it
        assert jnp.from_dlpack(x, copy=False).devices() == {jax.local_devices(backend="cpu")[0]}
    host = jax.local_devices(backend="cpu")[0]
    assert jnp.from_dlpack(x, device=host).devices() == {host}
    with jax.default_device(host):
        assert jnp.from_dlpack(x).devices() == {host}
    assert np.from_dlpack(y).ctypes.data == np.asarray(y).ctypes.data == y.unsafe_buffer_pointer()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_view_outlives_the_client(dtype):
    """Python may free the client at its end before what numpy still has of its arrays; memory that is freed is overwritten here."""
    program = f"""
import jax, jax.numpy as jnp, numpy as np
x = np.asarray(jax.jit(lambda a: a * 2)(jnp.ones((300, 300), jnp.{dtype})))
"""
    r = subprocess.run([sys.executable, "-c", program], env=os.environ | {"MALLOC_PERTURB_": "85", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"},
                       capture_output=True, text=True, timeout=600)
    assert r.returncode == 0, (r.returncode, r.stderr)
