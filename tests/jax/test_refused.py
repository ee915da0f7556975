"""What cannot be done is refused with the program and the line that asks for it."""
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

pytestmark = pytest.mark.only_rondo("messages of Rondo")
LINE = {}


def line_of(f):
    LINE[f.__name__] = f.__code__.co_firstlineno + 2
    return f


@line_of
def doubled(x):
    return x * 2


@line_of
def in_order(x):
    return jnp.sort(x)


@line_of
def foreign(x):
    return jax.ffi.ffi_call("nobody's", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


@line_of
def summed():
    return jnp.cumsum(jnp.zeros(1 << 36))[-1]


def refused(f, *args, of=None, **how):
    with pytest.raises(jax.errors.JaxRuntimeError) as e:
        jax.block_until_ready(jax.jit(f, **how)(*args) if not any(isinstance(a, jax.ShapeDtypeStruct) for a in args) else jax.jit(f, **how).lower(*args).compile())
    return str(e.value).replace(f"test_refused.py:{LINE[(of or f).__name__]}", "LINE")


@pytest.mark.parametrize("which, words", [("in_shardings", "LINE: argument 0 x of program 'jit_doubled', f32[16,24],"), ("out_shardings", "LINE: result 0 of program 'jit_doubled', f32[16,24],")])
def test_tiles(which, words):
    tiled = Format(Layout((1, 0), tiling=((8, 8),)), SingleDeviceSharding(jax.devices()[0]))
    x = np.ones((16, 24), np.float32)
    has = " has the layout '{0,1:T(8,8)}': those that order the dimensions are known, without tiles; instead: Layout((1, 0)), or none"
    assert words + has in refused(doubled, x, **{which: tiled})
    with pytest.raises(jax.errors.JaxRuntimeError, match="f32.16,24.," + re.escape(has)):
        jax.device_put(x, tiled)


def test_window_of_too_many():
    text = refused(summed)
    assert "LINE: 'reduce_window_v1': reduce_window: window: 68719476736 is not in 1 .. 1073741824" in text, text


def test_sort_of_too_many():
    text = refused(in_order, jax.ShapeDtypeStruct((1 << 31,), np.int8))
    assert text.endswith("program 'jit_in_order', LINE sort: sort of 2147483648 elements, more than 2147483647"), text


def test_custom_call_of_nobody():
    assert refused(foreign, jnp.ones(4)).endswith("LINE custom_call: custom call 'nobody's' of program 'jit_foreign' has no handler: "
                                                  "a JAX program has jaxlib's own, and those that jax.ffi.register_ffi_target registers for 'cpu' or 'rondo'")
