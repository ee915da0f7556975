"""The programs that are timed: plain JAX, the same on every platform.

A case is a function that returns a Case: what to call, with what, and how many units one call holds.  Data is
made on the host from fixed seeds.
"""

import dataclasses
import functools
from typing import Any, Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


@dataclasses.dataclass
class Case:
    call: Callable  # call(*args): its whole result is waited for
    args: tuple = ()
    units: int = 1  # the time reported is that of one unit
    keep: Callable | None = None  # keep(args, result) -> args of the next call (donated state)
    sample: Any = None  # what is compared instead of the result
    seconds: Callable | None = None  # times itself: returns seconds of one unit, result


@dataclasses.dataclass
class Work:
    """What one unit cannot do without, however it is written; limits.py makes a time of it."""

    flops: float = 0  # multiplications and additions ...
    kind: str = "f32"  # ... of which sort
    read: float = 0  # bytes from memory, all devices together
    written: float = 0
    peer: float = 0  # bytes that each device gets from others
    exchanges: int = 0  # how often each waits for another
    devices: int = 1


@dataclasses.dataclass
class Row:
    name: str
    make: Callable[[], Case]
    devices: int = 1
    tol: float = 1e-3
    alone: bool = False  # in a process of its own: its peak memory is reported
    timeout: int = 300
    quick: bool = False
    floor: float = 0  # the ratio that is wanted; 0: none
    own: float = 0  # the same to the XLA:CPU of the JAX that runs this alone; 0: none
    most: float = 0  # the microseconds that are wanted; 0: none
    work: Work | None = None  # None: no limit that means something


ROWS: list[Row] = []


def row(name, **options):
    def add(make):
        ROWS.append(Row(name, make, **options))
        return make

    return add


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng((seed, *shape)).standard_normal(shape, np.float32).astype(dtype)


def small(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).integers(-128, 128, shape, dtype=np.int8)


bf16 = ml_dtypes.bfloat16


# --- what everything costs before it computes -----------------------------------------------------


def compile_seconds(lowered):
    """Seconds from StableHLO to a loaded executable, without JAX's own work; None where JAX hides the call."""
    import time

    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jaxlib import _jax

    device = jax.devices()[0]
    code = mlir.module_to_bytecode(lowered.compiler_ir("stablehlo"))
    options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
    devices = _jax.DeviceList((device,))
    begin = time.perf_counter()
    device.client.compile_and_load(code, devices, options)
    return time.perf_counter() - begin


def own_part(work):
    """What work() returns and, where the platform logs it, the median of microseconds spent in its own compiler."""
    import os
    import re
    import tempfile

    with tempfile.TemporaryFile() as log:
        keep = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            result = work()
        finally:
            os.dup2(keep, 2)
            os.close(keep)
        log.seek(0)
        own = re.findall(rb"compiled in ([0-9.]+) us", log.read())
    return result, float(np.median([float(x) for x in own])) if own else None


@row("compile one op", quick=True)
def compile_one():
    x = np.ones(8, np.float32)

    def work():
        times = []
        for i in range(20):
            lowered = jax.jit(lambda x, i=i: x * np.float32(i + 2)).lower(x)
            times.append(compile_seconds(lowered))
        return float(np.median(times))

    def seconds():
        times, own = own_part(work)
        return times, (), own

    return Case(None, seconds=seconds)


@row("compile one op, without JAX's parser", quick=True, most=1000)
def compile_own():
    """On Rondo: its PJRT_Client_Compile alone, bytecode to executable.  XLA's cannot be told from its parser."""
    case = compile_one()

    def seconds():
        times, _, own = case.seconds()
        return (own * 1e-6 if own is not None else times), ()

    return Case(None, seconds=seconds)


@row("compile train step", alone=True, floor=1)
def compile_train():
    step, state, batch = train_setup()

    def seconds():
        return compile_seconds(step.lower(state, *batch)), ()  # once: a second time Rondo finds its groups

    return Case(None, seconds=seconds)


@row("dispatch jit(x + 1)", quick=True, floor=1.3)
def dispatch():
    f = jax.jit(lambda x: x + 1)

    def many(x):
        for _ in range(2000):
            y = jax.block_until_ready(f(x))
        return y

    return Case(many, (jnp.ones(8),), units=2000)


@row("dispatch 100 arrays", floor=1.3)
def dispatch_many():
    f = jax.jit(lambda xs: [x + 1 for x in xs])

    def many(xs):
        for _ in range(100):
            y = jax.block_until_ready(f(xs))
        return y

    return Case(many, ([jnp.ones(8) for _ in range(100)],), units=100)


# --- single operations, shapes of Llama 3 8B ------------------------------------------------------


def simple(fn, *arrays):
    return Case(jax.jit(fn), tuple(map(jnp.asarray, arrays)))


def wide(fn, *arrays):
    """With types of 64 bits."""
    with jax.enable_x64(True):
        args = tuple(map(jnp.asarray, arrays))
        return Case(jax.jit(fn).lower(*args).compile(), args)


def product(m, n, k, kind, out=None):
    size = {"f32": 4, "bf16": 2, "i8": 1}[kind]
    return Work(2 * m * n * k, kind, size * (m * k + k * n), (out or size) * m * n)


def moves(read, written):
    return Work(read=read, written=written)


def rmsnorm(x):
    y = x.astype(jnp.float32)
    return (y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5)).astype(x.dtype)


def rotary(x, at):
    angle = at[:, None] / 10000 ** (jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(x.dtype)


def register_ops():
    big = (4096, 4096)

    def add(name, make, **options):
        row(name, **options)(make)

    for n in 512, 1024, 2048, 4096:
        add(f"matmul bf16 {n}", lambda n=n: simple(jnp.matmul, normal(n, n, seed=1, dtype=bf16), normal(n, n, seed=2, dtype=bf16)),
            tol=2e-2, quick=n == 1024, floor=1, own=0.55, work=product(n, n, n, "bf16"))
    for m in 1, 8, 32, 512:
        add(f"matmul bf16 {m}x4096x14336", lambda m=m: simple(jnp.matmul, normal(m, 4096, seed=1, dtype=bf16), normal(4096, 14336, seed=2, dtype=bf16)),
            tol=2e-2, floor=0.1 if m == 1 else 0.83 if m <= 32 else 1, own=0.55 if m > 1 else 0, work=product(m, 14336, 4096, "bf16"))
    add("matmul bf16 32x4096x4096 by rows", lambda: simple(lambda a, b: a @ b.T, normal(32, 4096, seed=1, dtype=bf16), normal(4096, 4096, seed=2, dtype=bf16)), tol=2e-2,
        work=product(32, 4096, 4096, "bf16"))
    for m, n, k in (1024, 1024, 1024), (32, 4096, 4096):
        add(f"matmul i8 {m}x{k}x{n}", lambda m=m, n=n, k=k: simple(lambda a, b: lax.dot(a, b, preferred_element_type=jnp.int32), small(m, k), small(k, n, seed=1)), tol=0,
            work=product(m, n, k, "i8", 4))
    add("matmul f32 1x4096x14336", lambda: simple(jnp.matmul, normal(1, 4096, seed=1), normal(4096, 14336, seed=2)), work=product(1, 14336, 4096, "f32"))
    for n in 1024, 2048:
        add(f"matmul f32 {n}", lambda n=n: simple(jnp.matmul, normal(n, n, seed=1), normal(n, n, seed=2)), work=product(n, n, n, "f32"))
    for m, k, n in (1000, 784, 10), (5000, 8, 8), (32, 4096, 4096):
        add(f"matmul f32 {m}x{k}x{n}", lambda m=m, k=k, n=n: simple(jnp.matmul, normal(m, k, seed=1), normal(k, n, seed=2)), work=product(m, n, k, "f32"))
    add("matmul f32 256x1024x2816", lambda: simple(jnp.matmul, normal(256, 1024, seed=1), normal(1024, 2816, seed=2)), work=product(256, 2816, 1024, "f32"))
    for dtype, tag in (np.float16, "f16"), (np.int32, "i32"), (np.uint8, "u8"):
        x = np.random.default_rng(7).integers(0, 9, (2048, 2048)).astype(dtype)
        add(f"matrix times vector {tag} 2048", lambda x=x: simple(lambda x: x @ x[0], x), tol=1e-2 if tag == "f16" else 0, floor=2, work=moves(x.nbytes, 0))
    add("matmul c64 1024x1024x8", lambda: simple(lambda a, b: a @ b, normal(1024, 1024, seed=1) + 1j * normal(1024, 1024, seed=2), normal(1024, 8, seed=3) + 1j * normal(1024, 8, seed=4)),
        floor=1, work=moves(8 << 20, 0))
    add("matmul c64 512", lambda: simple(lambda a, b: a @ b, normal(512, 512, seed=1) + 1j * normal(512, 512, seed=2), normal(512, 512, seed=3) + 1j * normal(512, 512, seed=4)),
        work=product(512, 1024, 1024, "f32"))
    for dtype, tag in (np.float32, "f32"), (bf16, "bf16"):
        add(f"convolution 3x3 8x56x56x64 {tag}", lambda d=dtype: simple(
            lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
            normal(8, 56, 56, 64, dtype=d), normal(3, 3, 64, 64, seed=1, dtype=d)), tol=1e-3 if tag == "f32" else 3e-2, work=product(8 * 56 * 56, 64, 9 * 64, tag))
    add("fft of 1024 lines of 1024", lambda: simple(jnp.fft.fft, normal(1024, 1024) + 1j * normal(1024, 1024, seed=1)), work=moves(8 << 20, 8 << 20))
    add("1000 products of 2x2", lambda: simple(jnp.matmul, normal(1000, 2, 2), normal(1000, 2, 2, seed=1)), work=moves(48000, 0))
    add("4 rows of a transposed 8192x512", lambda: simple(lambda x, i: jnp.take(x.T, i, axis=0), normal(8192, 512), np.int32([5, 100, 3, 511])), work=moves(4 * 32768, 4 * 32768))
    add("sum of a kernel over pairs 4096x3", lambda: simple(lambda p: jnp.exp(-((p[None] - p[:, None]) ** 2).sum(-1)).sum(1), normal(4096, 3)), work=moves(49152, 16384))
    add("fft of 2^20", lambda: simple(jnp.fft.fft, normal(1 << 20) + 1j * normal(1 << 20, seed=1)), work=moves(8 << 20, 8 << 20))
    add("real fft of 2^20", lambda: simple(lambda x: jnp.abs(jnp.fft.rfft(x)), normal(1 << 20)), work=moves(4 << 20, 2 << 20))
    add("fft of 10007", lambda: simple(jnp.fft.fft, normal(10007) + 1j * normal(10007, seed=1)), work=moves(80056, 80056))
    add("fft2 of 1024 x 1024", lambda: simple(jnp.fft.fft2, normal(1024, 1024) + 1j * normal(1024, 1024, seed=1)), work=moves(8 << 20, 8 << 20))
    add("real fft of 4096 lines of 1000", lambda: simple(lambda x: jnp.abs(jnp.fft.rfft(x)), normal(4096, 1000)), work=moves(4096 * 4000, 4096 * 501 * 4))
    add("real fft of 4096 lines of 999", lambda: simple(lambda x: jnp.abs(jnp.fft.rfft(x)), normal(4096, 999)), work=moves(4096 * 3996, 4096 * 500 * 4))
    add("chain of complex 4M", lambda: simple(lambda x, y: (x * y + jnp.conj(x)) / (y * y + 2) - x, normal(1 << 22) + 1j * normal(1 << 22, seed=1), normal(1 << 22, seed=2) + 1j * normal(1 << 22, seed=3)), tol=1e-2,
        work=moves(64 << 20, 32 << 20))

    def pool(x):
        return lax.reduce_window(x, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    add("gradient of max-pool 8x112x112x64", lambda: simple(jax.grad(lambda x: (pool(x) ** 2).sum()), normal(8, 112, 112, 64)), work=moves(4 * 8 * 112 * 112 * 64, 4 * 8 * 112 * 112 * 64))
    add("gradient of max-pool 3x3/2 480x960", lambda: simple(jax.grad(lambda x: (lax.reduce_window(x, -np.inf, lax.max, (3, 3), (2, 2), "SAME") ** 2).sum()), normal(480, 960)),
        work=moves(4 * 480 * 960, 4 * 480 * 960))
    windows = {"max 2x2/2 NCHW": (lax.max, -np.inf, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"), "max 2x2/2 NHWC": (lax.max, -np.inf, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
               "max 3x3/2 NCHW": (lax.max, -np.inf, (1, 1, 3, 3), (1, 1, 2, 2), "SAME"), "sum 3x3 NCHW": (lax.add, 0., (1, 1, 3, 3), (1, 1, 1, 1), "SAME"),
               "sum 3x3 NHWC": (lax.add, 0., (1, 3, 3, 1), (1, 1, 1, 1), "SAME")}
    for name, (op, start, window, step, how) in windows.items():
        shape = (16, 64, 112, 112) if "NCHW" in name else (16, 112, 112, 64)
        add(f"pool {name} 16x64x112x112", lambda o=op, s=start, w=window, t=step, h=how, d=shape: simple(lambda x: lax.reduce_window(x, np.float32(s), o, w, t, h), normal(*d)),
            work=moves(4 * 16 * 64 * 112 * 112, 4 * 16 * 64 * 112 * 112 // step[1 if "NHWC" in name else 2] ** 2))
    add("box filter 15x15 of 8x512x512", lambda: simple(lambda x: lax.reduce_window(x, np.float32(0), lax.add, (1, 15, 15), (1, 1, 1), "SAME"), normal(8, 512, 512)), work=moves(8 << 20, 8 << 20))
    add("gradient of avg-pool 2x2 8x56x56x64", lambda: simple(jax.grad(lambda x: (lax.reduce_window(x, np.float32(0), lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") ** 2).sum()), normal(8, 56, 56, 64)),
        work=moves(4 * 8 * 56 * 56 * 64, 4 * 8 * 56 * 56 * 64))
    add("bincount 4M into 1024", lambda: simple(lambda x: jnp.bincount(x, length=1024), np.random.default_rng(1).integers(0, 1024, 1 << 22).astype(np.int32)), tol=0, work=moves(16 << 20, 0))
    add("argmax 8x128256", lambda: simple(lambda x: jnp.argmax(x, -1), normal(8, 128256)), tol=0, work=moves(4 * 8 * 128256, 0))
    add("jax.random.categorical 8x128256", lambda: simple(jax.random.categorical, jax.random.key(0), normal(8, 128256)), tol=0, work=moves(4 * 8 * 128256, 0))
    add("argmax of 1M pred", lambda: simple(jnp.argmax, normal(1 << 20) > 9), tol=0, work=moves(1 << 20, 0))
    add("argmax 32x128256", lambda: simple(lambda x: jnp.argmax(x, -1), normal(32, 128256)), tol=0, work=moves(4 * 32 * 128256, 0))
    add("batch norm 64x56x56x16", lambda: simple(lambda x: (x - x.mean((0, 1, 2))) * lax.rsqrt(x.var((0, 1, 2)) + 1e-5), normal(64, 56, 56, 16)), work=moves(4 * 64 * 56 * 56 * 16, 4 * 64 * 56 * 56 * 16))
    add("mean and variance of columns 1Mx8", lambda: simple(lambda x: (x.mean(0), x.var(0)), normal(1 << 20, 8)), work=moves(32 << 20, 0))
    add("argmax 100000x10", lambda: simple(lambda x: jnp.argmax(x, -1), normal(100000, 10)), tol=0, work=moves(4 * 1000000, 0))
    add("dot f32 4M", lambda: simple(jnp.dot, normal(1 << 22), normal(1 << 22, seed=1)), work=moves(32 << 20, 0))
    add("matmul f32 1Mx3x1", lambda: simple(jnp.matmul, normal(1 << 20, 3), normal(3, seed=1)), work=moves(12 << 20, 4 << 20))
    for k in 3, 6:
        add(f"matmul f32 2000x2000x{k}", lambda k=k: simple(jnp.matmul, normal(2000, 2000), normal(2000, k, seed=1)), work=moves(4 * 2000 * 2000, 4 * 2000 * k))
    for k in 3, 4:
        add(f"50000 products of {k}x{k}", lambda k=k: simple(jnp.matmul, normal(50000, k, k), normal(50000, k, k, seed=1)), work=moves(8 * 50000 * k * k, 4 * 50000 * k * k))
        add(f"50000 products of {k}x{k} with vectors", lambda k=k: simple(lambda a, x: jnp.einsum("nij,nj->ni", a, x), normal(50000, k, k), normal(50000, k, seed=1)),
            work=moves(4 * 50000 * k * (k + 1), 4 * 50000 * k))
    bytes_ = np.random.default_rng(2).integers(0, 256, (8, 224, 224, 3)).astype(np.uint8)
    add("images u8 8x224x224x3, channels first", lambda: simple(lambda x: x.transpose(0, 3, 1, 2), bytes_), tol=0, work=moves(bytes_.size, bytes_.size))
    add("images u8 8x3x224x224, channels last", lambda: simple(lambda x: x.transpose(0, 2, 3, 1), bytes_.reshape(8, 3, 224, 224)), tol=0, work=moves(bytes_.size, bytes_.size))
    add("space to depth f32 8x224x224x3", lambda: simple(lambda x: x.reshape(8, 112, 2, 112, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(8, 112, 112, 12), bytes_.astype(np.float32)), tol=0,
        work=moves(4 * bytes_.size, 4 * bytes_.size))
    add("x + b of 400000x3", lambda: simple(jnp.add, normal(400000, 3), normal(3, seed=1)), work=moves(4800000, 4800000))
    add("(x / 255 - m) / s of u8 8x224x224x3", lambda: simple(lambda x, m, s: (x / np.float32(255) - m) / s, bytes_, normal(3), 1 + abs(normal(3, seed=1))), work=moves(bytes_.size, 4 * bytes_.size))
    add("relu(x * a + b) of 400000x3", lambda: simple(lambda x, a, b: jax.nn.relu(x * a + b), normal(400000, 3), normal(3, seed=1), normal(3, seed=2)), work=moves(4800000, 4800000))
    add("x[:, ::-1] of 400000x4", lambda: simple(lambda x: x[:, ::-1], normal(400000, 4)), tol=0, work=moves(6400000, 6400000))
    add("5000 products of 32x32x8", lambda: simple(jnp.matmul, normal(5000, 32, 32), normal(5000, 32, 8, seed=1)), work=moves(4 * 5000 * 32 * 40, 4 * 5000 * 32 * 8))
    add("f32 to int32 4M", lambda: simple(lambda x: x.astype(jnp.int32), normal(1 << 22) * 100), tol=0, work=moves(16 << 20, 16 << 20))
    add("x.at[i].apply, 200000 of 1M", lambda: simple(lambda x, i: x.at[i].apply(jnp.negative), normal(1 << 20), np.random.default_rng(3).integers(0, 1 << 20, 200000).astype(np.int32)), tol=0,
        work=moves(4800000 + (4 << 20), 4 << 20))
    add("maximum of rows f32", lambda: simple(lambda x: x.max(-1), normal(*big)), tol=0, work=moves(64 << 20, 0))
    for dtype, tag in (np.float32, "f32"), (bf16, "bf16"):
        tol = 1e-3 if tag == "f32" else 3e-2
        q, size = dict(tol=tol, quick=tag == "bf16"), 2**24 * (4 if tag == "f32" else 2)
        one, two = moves(size, size), moves(2 * size, size)
        add(f"rmsnorm {tag}", lambda d=dtype: simple(rmsnorm, normal(*big, dtype=d)), work=one, **q)
        add(f"residual rmsnorm {tag}", lambda d=dtype: simple(lambda x, r: rmsnorm(x + r), normal(*big, dtype=d), normal(*big, seed=1, dtype=d)), work=two, **q)
        add(f"softmax {tag}", lambda d=dtype: simple(jax.nn.softmax, normal(*big, dtype=d)), work=one, **q)
        add(f"swiglu {tag}", lambda d=dtype: simple(lambda a, b: jax.nn.silu(a) * b, normal(*big, dtype=d), normal(*big, seed=1, dtype=d)), work=two, **q)
        add(f"rotary {tag}", lambda d=dtype: simple(lambda x: rotary(x, jnp.arange(x.shape[0])), normal(4096, 32, 128, dtype=d)), floor=0.5, work=one, **q)

    def layers():
        x, w = normal(16, 256), normal(32, 256, 256, seed=1) / 16
        return simple(lambda x, w: lax.scan(lambda x, w: (rmsnorm(x @ w), None), x, w)[0], x, w)

    add("scan 32 layers 16x256", layers, quick=True)
    tokens = np.random.default_rng(0).integers(0, 128256, 8192)
    add("embed 128256x1024", lambda: simple(lambda t, i: t[i], normal(128256, 1024), tokens), tol=0, work=moves(8192 * 4096, 8192 * 4096))
    add("scatter-add 8192 rows", lambda: simple(lambda g, i: jnp.zeros((128256, 1024), jnp.float32).at[i].add(g), normal(8192, 1024, seed=3), tokens), floor=0.5,
        work=moves(8192 * 4096, 128256 * 4096))
    places = np.random.default_rng(0).integers(0, 1 << 18, 1 << 18).astype(np.int32)
    for mode, dtype, tag in ("multiply", np.float32, "f32"), ("max", np.float32, "f32"), ("add", bf16, "bf16"), ("set", np.float16, "f16"):
        add(f"scatter-{mode} {tag} 256K of 256K", lambda m=mode, d=dtype: simple(lambda x, i: getattr(x.at[i], m)(x), normal(1 << 18, dtype=d), places),
            tol=0 if mode == "set" else 2e-2, floor=2)
    some = np.random.default_rng(0).integers(0, 4096, 1 << 16).astype(np.int32)
    for width in 8, 64:
        for name, op in ("sum", jax.ops.segment_sum), ("max", jax.ops.segment_max):
            add(f"segment_{name} 64K rows of {width} into 4096", lambda o=op, w=width: simple(lambda x, i: o(x, i, 4096), normal(1 << 16, w), some), tol=1e-3 if name == "sum" else 0,
                work=moves(4 * width << 16, 4 * width << 12))
    add("take_along_axis 4096x256 of 4096x1000", lambda: simple(lambda x, i: jnp.take_along_axis(x, i, 1), normal(4096, 1000), np.random.default_rng(1).integers(0, 1000, (4096, 256))), tol=0,
        work=moves(4 * 4096 * 256, 4 * 4096 * 256))
    add("repeat 1M by 8", lambda: simple(lambda x: jnp.repeat(x, 8), normal(1 << 20)), tol=0, work=moves(4 << 20, 32 << 20))
    for name, f in ("exp", jnp.exp), ("log", lambda x: jnp.log(x * x)), ("tanh", jnp.tanh), ("sin", jnp.sin):
        add(f"{name} f64 4M", lambda f=f: wide(f, normal(1 << 22, dtype=np.float64)), tol=1e-12, work=moves(32 << 20, 32 << 20))
    add("softmax f64 8192x512", lambda: wide(jax.nn.softmax, normal(8192, 512, dtype=np.float64)), tol=1e-12, work=moves(32 << 20, 32 << 20))
    for name, f in ("absolute values", lambda x, y: jnp.abs(x)), ("quotients", lambda x, y: x / y):
        add(f"{name} c128 1M", lambda f=f: wide(f, *(normal(2, 1 << 20, seed=k, dtype=np.float64).T.copy().view(np.complex128)[:, 0] for k in (1, 2))), tol=1e-9, work=moves(16 << 20, 8 << 20))
    for t, name in (np.float32, "f32"), (bf16, "bf16"):
        add(f"sum of columns {name} 8192x4096", lambda t=t: simple(lambda x: x.sum(0), normal(8192, 4096, dtype=t)), tol=1e-2, work=moves(8192 * 4096 * np.dtype(t).itemsize, 0))
        add(f"maximum of columns {name} 8192x4096", lambda t=t: simple(lambda x: x.max(0), normal(8192, 4096, dtype=t)), tol=0, work=moves(8192 * 4096 * np.dtype(t).itemsize, 0))
    add("variance of columns bf16 4096x4096", lambda: simple(lambda x: x.var(0), normal(*big, dtype=bf16)), tol=2e-2, work=moves(64 << 20, 0))
    add("logsumexp bf16 4096x1024", lambda: simple(lambda x: jax.nn.logsumexp(x, -1), normal(4096, 1024, dtype=bf16)), tol=2e-2, work=moves(8 << 20, 0))
    for name, f in ("remainder", lambda x: jnp.mod(x, np.float32(0.7))), ("rsqrt", lambda x: lax.rsqrt(x * x + 1)), ("clip", lambda x: jnp.clip(x, -1, 1)):
        add(f"{name} f32 1M", lambda f=f: simple(f, normal(1 << 20)), tol=1e-5, work=moves(4 << 20, 4 << 20))
    add("rows backwards u8 4096x4096", lambda: simple(lambda x: x[:, ::-1], small(*big).view(np.uint8)), tol=0, work=moves(16 << 20, 16 << 20))
    add("scan of 512 products 256x256 by a vector f32", lambda: simple(lambda w, x: lax.scan(lambda c, x: (jnp.tanh(w @ c + x), None), x[0], x)[0], normal(256, 256) / 16, normal(512, 256)))
    add("scan of 512 solves 4x4", lambda: simple(lambda a, b: lax.scan(lambda c, x: (c + jnp.linalg.solve(*x), None), b[0], (a, b))[0], normal(512, 4, 4) + 4 * np.eye(4, dtype=np.float32), normal(512, 4)))
    add("sort bf16 4M", lambda: simple(jnp.sort, normal(1 << 22, dtype=bf16)), tol=0, floor=0.5, work=moves(8 << 20, 8 << 20))
    add("sort 1M", lambda: simple(jnp.sort, normal(1 << 20)), tol=0, quick=True, floor=0.5, work=moves(4 << 20, 4 << 20))
    add("argsort 8x128256", lambda: simple(jnp.argsort, normal(8, 128256)), tol=0, floor=0.5, work=moves(4 * 8 * 128256, 4 * 8 * 128256))
    add("top-k 64 of 8x128256", lambda: simple(lambda x: lax.top_k(x, 64)[0], normal(8, 128256)), tol=0, work=moves(4 * 8 * 128256, 0))
    add("top-k 2 of 4096x64", lambda: simple(lambda x: lax.top_k(x, 2)[0], normal(4096, 64)), tol=0, work=moves(4 * 4096 * 64, 8 * 4096))
    add("norm of bf16 4096x1024", lambda: simple(jnp.linalg.norm, normal(4096, 1024, dtype=bf16)), tol=1e-2, work=moves(2 * 4096 * 1024, 2))
    add("cumsum 4M", lambda: simple(jnp.cumsum, normal(1 << 22)), floor=0.5, work=moves(16 << 20, 16 << 20))
    add("cumsum 8192x1024 axis 0", lambda: simple(lambda x: jnp.cumsum(x, 0), normal(8192, 1024)), quick=True, floor=0.5, work=moves(32 << 20, 32 << 20))
    add("transpose + 1 4096x4096", lambda: simple(lambda x: x.T + 1, normal(*big)), quick=True, floor=0.5, work=moves(64 << 20, 64 << 20))
    add("threefry bits 16M", lambda: simple(lambda k: jax.random.bits(jax.random.wrap_key_data(k, impl="threefry2x32"), (1 << 24,)), np.array([1, 2], np.uint32)), tol=0, floor=0.5, work=moves(0, 64 << 20))
    add("threefry normal 16M", lambda: simple(lambda k: jax.random.normal(jax.random.wrap_key_data(k, impl="threefry2x32"), (1 << 24,)), np.array([1, 2], np.uint32)), tol=1e-2, floor=0.5, work=moves(0, 64 << 20))


register_ops()


# --- loops and updates ----------------------------------------------------------------------------


@row("while 10^7 scalar turns")
def while_scalar():
    f = jax.jit(lambda n: lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] + s[0] * 3), (jnp.int32(0), jnp.int32(0))))
    return Case(f, (jnp.int32(10**7),), units=10**7)


@row("loop of 10^5 updates of an element", quick=True)
def loop_of_updates():
    f = jax.jit(lambda x: lax.fori_loop(0, 100000, lambda i, x: x.at[i].set(x[i - 1] * 0.9 + 1), x))
    return Case(f, (np.zeros(100001, np.float32),))


@row("shuffle of 10^4 by swaps")
def shuffle():
    def swap(i, p):
        j = i + (p[i] * 7 + 3) % (10000 - i)
        return p.at[i].set(p[j]).at[j].set(p[i])

    return Case(jax.jit(lambda p: lax.fori_loop(0, 9999, swap, p)), (np.arange(10000, dtype=np.int32),))


@row("scan over 20000x16, an average that moves")
def moving_average():
    f = jax.jit(lambda x: lax.scan(lambda s, t: (s * 0.9 + t, s), jnp.zeros(16), x))
    return Case(f, (np.random.default_rng(1).normal(size=(20000, 16)).astype(np.float32),))


@row("loop of 10^4 tiny turns", quick=True, floor=1.5)
def loop_tiny():
    f = jax.jit(lambda x: lax.fori_loop(0, 10000, lambda i, x: jnp.sin(x) + i, x))
    return Case(f, (jnp.ones(8),), units=10000)


def cache_update(rows):
    f = jax.jit(lambda cache, x, at: lax.dynamic_update_slice(cache, x, (at, 0)), donate_argnums=0)
    cache, x = jnp.asarray(normal(rows, 256, dtype=bf16)), jnp.asarray(normal(1, 256, seed=1, dtype=bf16))
    return Case(f, (cache, x, jnp.int32(rows // 2)), keep=lambda args, out: (out, *args[1:]))


for _rows in 1 << 10, 1 << 13, 1 << 16:
    row(f"donated cache row {_rows}x256", quick=_rows == 1 << 16, floor=1 if _rows == 1 << 16 else 0, own=0.01 if _rows == 1 << 16 else 0)(functools.partial(cache_update, _rows))


@row("Adam's update of 4M, donated", work=moves(4 * (16 << 20), 3 * (16 << 20)))
def donated_update():
    def update(p, m, v, g):
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v
    p, m, v, g = (jnp.asarray(normal(2048, 2048, seed=k)) for k in range(4))
    return Case(jax.jit(update, donate_argnums=(0, 1, 2)), (p, m, v * v, g), keep=lambda args, out: (*out, args[3]))


# --- two devices ------------------------------------------------------------------------------------


def mesh(**axes):
    """Axes that the compiler may use as it likes."""
    n = int(np.prod(list(axes.values())))
    return jax.make_mesh(tuple(axes.values()), tuple(axes), devices=jax.devices()[:n], axis_types=(jax.sharding.AxisType.Auto,) * len(axes))


def place(x, m, spec):
    return jax.device_put(x, NamedSharding(m, spec))


def collective(step, devices, size, trips):
    m = mesh(x=devices)
    x = place(normal(devices * max(size // 4, devices)), m, P("x"))

    @jax.jit
    @functools.partial(jax.shard_map, mesh=m, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    def f(x):
        return lax.fori_loop(0, trips, lambda i, x: step(x, devices), x)

    return Case(f, (x,), units=trips)


# In a loop that goes on with what came.
COLLECTIVES = {
    "psum": lambda x, n: lax.psum(x, "x") * (1 / n),
    "ppermute": lambda x, n: lax.ppermute(x, "x", [(i, (i + 1) % n) for i in range(n)]),
    "all_gather": lambda x, n: lax.all_gather(x, "x", tiled=True)[:x.shape[0]],
    "psum_scatter": lambda x, n: jnp.tile(lax.psum_scatter(x, "x", tiled=True), n) * (1 / n),
    "all_to_all": lambda x, n: lax.all_to_all(x, "x", 0, 0, tiled=True),
}

# Of a device's n bytes, how much comes from others; nothing comes before it was sent.
FROM_PEERS = {"psum": lambda n, d: 2 * n * (d - 1) / d, "ppermute": lambda n, d: n, "all_gather": lambda n, d: n * (d - 1),
              "psum_scatter": lambda n, d: n * (d - 1) / d, "all_to_all": lambda n, d: n * (d - 1) / d}

for _op, _step in COLLECTIVES.items():
    for _devices, _size, _name, _trips, _floor in ((2, 8, "8 B", 1000, 0.067), (2, 1 << 10, "1 KB", 1000, 0.067), (2, 1 << 20, "1 MB", 50, 0.5),
                                                   (2, 1 << 24, "16 MB", 5, 0.5), (4, 16, "16 B", 1000, 0.125)):
        row(f"{_op} {_name} {_devices} devices", devices=_devices, quick=_op in ("psum", "ppermute") and _size in (8, 1 << 20),
            floor=_floor, work=Work(peer=FROM_PEERS[_op](_size, _devices) if _size >= 1 << 18 else 0, exchanges=1, devices=_devices))(
                functools.partial(collective, _step, _devices, _size, _trips))


def after_a_sum(rows, dtype, devices):
    """What follows the sum over devices in each layer: the residual is added, and its rows are normalised."""
    m, width, layers, turns = mesh(tp=devices), 4096, 4, 10

    @jax.jit
    @functools.partial(jax.shard_map, mesh=m, in_specs=(P("tp"), P(), P()), out_specs=(P(), P("tp")), check_vma=False)
    def f(x, h, g):
        def turn(_, c):
            x, h = c
            for _ in range(layers):
                h = h * 0.5 + lax.psum(x, "tp")
                x = rmsnorm(h) * g
            return x, h
        x, h = lax.fori_loop(0, turns, turn, (x[0], h))
        return h, x[None]

    args = normal(devices, rows, width, dtype=dtype), normal(rows, width, seed=1, dtype=dtype), normal(width, seed=2, dtype=dtype)
    return Case(f, tuple(place(a, m, s) for a, s in zip(args, (P("tp"), P(), P()))), units=layers * turns)


for _devices in (2, 4):
    for _rows, _dtype, _name in ((1, bf16, "bf16"), (32, bf16, "bf16"), (32, np.float32, "f32"), (1024, np.float32, "f32")):
        row(f"sum, residual, RMSNorm of {_rows} x 4096 {_name}, {_devices} devices", devices=_devices, tol=0.05 if _dtype is bf16 else 1e-3)(
            functools.partial(after_a_sum, _rows, _dtype, _devices))


def life(x):
    near = sum(jnp.roll(x, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)
    return ((near == 3) | ((near == 2) & (x == 1))).astype(x.dtype)


# Borders travel; what is left are the bytes that each device reads and writes.
for _name, _f, _x in (("roll along two 4096x4096 f32", lambda x: jnp.roll(x, (1, 1), (0, 1)), normal(4096, 4096)),
                      ("ten turns of life 480x960", lambda x: lax.fori_loop(0, 10, lambda _, x: life(x), x), np.random.default_rng(1).integers(0, 2, (480, 960), np.int32))):
    row(f"{_name}, 2 x 4 devices", devices=8, work=moves(_x.nbytes, _x.nbytes) if _name.startswith("roll") else None)(
        lambda f=_f, x=_x: Case(jax.jit(f), (place(x, mesh(x=2, y=4), P("x", "y")),)))


@row("loop of vectors by a matrix of two columns")
def loop_narrow():
    k, c = jnp.asarray(normal(7, 2)) / 9, jnp.asarray(normal(7, seed=1))
    return Case(jax.jit(lambda c, k: lax.fori_loop(0, 10000, lambda i, y: (c * y[0]) @ k, jnp.ones(2))), (c, k), units=10000)


# A turn of these is one function of its own, with what it multiplies in registers.
for _name, _f, _x in (("scan of 2x2 products", lambda x: lax.scan(lambda f, a: (a @ f + 1, f[0]), jnp.zeros(2), x)[1], normal(10000, 2, 2) / 3),
                      ("loop of eight 3x3 products", lambda x: lax.fori_loop(0, 10000, lambda i, y: y @ y * 0.3, x), np.full((8, 3, 3), 0.3, np.float32)),
                      ("loop of a convolution of 32 by 3", lambda x: lax.fori_loop(0, 10000, lambda i, y: jnp.convolve(y, jnp.array([0.2, 0.5, 0.2]), "same"), x), np.ones(32, np.float32)),
                      ("loop of a 3x3 blur of 64x64", lambda x: lax.fori_loop(0, 1000, lambda i, y: jax.scipy.signal.convolve2d(y, jnp.full((3, 3), 0.1), "same"), x), np.ones((64, 64), np.float32))):
    row(_name)(lambda f=_f, x=_x, n=1000 if "blur" in _name else 10000: Case(jax.jit(f), (jnp.asarray(x),), units=n))


@row("scan over 4096 rows of 64 that 4 devices share", devices=4)
def scan_of_shared_rows():
    x = place(normal(4096, 64), mesh(x=4), P("x"))
    return Case(jax.jit(lambda x: lax.scan(lambda c, r: (jnp.tanh(c + r), c), x[0] * 0, x)), (x,))


@row("decode, 64 calls in flight, 2 devices", devices=2, alone=True, timeout=60)
def decode_async():
    """A small tensor-parallel step, called again and again with its own result, waited for at the end."""
    m, width, room = mesh(tp=2), 256, 576
    spec = [(P(None, "tp"), P("tp", None))] * 4
    weights = [(normal(width, 768, seed=2 * i) / 16, normal(768, width, seed=2 * i + 1) / 28) for i in range(4)]
    weights = jax.tree.map(lambda x, s: place(x, m, s), weights, spec)
    cache = place(normal(4, room, width), m, P(None, None, "tp"))

    @functools.partial(jax.jit, donate_argnums=1)
    @functools.partial(jax.shard_map, mesh=m, in_specs=(spec, P(None, None, "tp"), P(), P()), out_specs=(P(None, None, "tp"), P(), P()), check_vma=False)
    def step(weights, cache, x, at):
        half = width // 2
        for i, (a, b) in enumerate(weights):
            mine = lax.dynamic_slice(x, (0, lax.axis_index("tp") * half), (1, half))
            cache = lax.dynamic_update_slice(cache, mine[None], (i, at, 0))
            p = jax.nn.softmax(jnp.where(jnp.arange(room) <= at, cache[i] @ mine[0] / 16, -1e30))
            x = x + lax.all_gather(p @ cache[i], "tp", tiled=True)[None]
            x = rmsnorm(x + lax.psum(jax.nn.silu(x @ a) @ b, "tp"))
        return cache, x, at + 1

    def many(weights, cache, x):
        at = jnp.int32(512)
        for _ in range(64):
            cache, x, at = step(weights, cache, x, at)
        return cache, x

    return Case(many, (weights, cache, place(normal(1, width, seed=9), m, P())), units=64, keep=lambda args, out: (args[0], out[0], args[2]), sample=lambda out: out[1])


# --- attention --------------------------------------------------------------------------------------


def attention(length, width, dtype, back, devices=1, heads=4):
    """Causal, as jax.nn has it; with its gradient; over devices the sequence is sharded."""
    x = [normal(1, length, heads, width, seed=i, dtype=dtype) for i in range(4)]
    if devices > 1:
        m = mesh(s=devices)
        x = [place(a, m, P(None, "s")) for a in x]

    def f(q, k, v, w):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    def g(q, k, v, w):
        return jax.grad(lambda q, k, v: (f(q, k, v, w).astype(jnp.float32) * w).sum(), (0, 1, 2))(q, k, v)

    return simple(g if back else f, *x)


def register_attention():
    for dtype, name, devices, width, length, back in [(t, n, 1, d, s, b) for t, n in ((ml_dtypes.bfloat16, "bf16"), (np.float32, "f32")) for d in (64, 128)
                                                      for s in (1024, 4096) for b in (False, True)] + [
                                                          (ml_dtypes.bfloat16, "bf16", 2, 128, 2048, False), (ml_dtypes.bfloat16, "bf16", 2, 128, 2048, True)]:
        floor = 1 / 9 if back else 1 / 6.5 if name == "f32" else 1 / 7 if width == 128 else 1 / 10
        # two products of half the pairs, or with the gradient seven
        work = Work(flops=length * (length + 1) * width * 4 * (7 if back else 2), kind=name, devices=devices)
        over = f", sequence over {devices} devices" if devices > 1 else ""
        row(f"attention {name} {length}x{width}{' with gradient' if back else ''}{over}", devices=devices, tol=4e-2 if name == "bf16" else 1e-3, timeout=200,
            quick=name == "bf16" and length == 4096 and width == 128, floor=round(floor, 3), work=work)(
                functools.partial(attention, length, width, dtype, back, devices))


register_attention()


def attention_step(batch, length, keys, group, width, dtype, layers=4):
    """Attention of a step of decoding in each of some layers, whose caches together are more than the processor keeps: one query for each of `group` heads that share a head of keys."""
    shape = batch, length, keys, width

    def f(q, at, *cache):
        for k, v in zip(cache[::2], cache[1::2]):
            score = jnp.einsum("bkgd,bskd->bkgs", q, k, preferred_element_type=jnp.float32) / width**0.5
            p = jax.nn.softmax(jnp.where(jnp.arange(length) <= at, score, -1e30)).astype(v.dtype)
            q = jnp.einsum("bkgs,bskd->bkgd", p, v)
        return q

    return simple(f, normal(batch, keys, group, width, dtype=dtype), np.int32(length), *(normal(*shape, seed=i, dtype=dtype) for i in range(2 * layers)))


for name, dtype, step in (("f32", np.float32, (8, 528, 4, 2, 64)), ("bf16", ml_dtypes.bfloat16, (8, 528, 8, 2, 64)), ("bf16", ml_dtypes.bfloat16, (1, 8192, 8, 4, 128))):
    read = 4 * 2 * step[0] * step[1] * step[2] * step[4] * np.dtype(dtype).itemsize
    row(f"attention of a step {name} {step[0]}x{step[1]}x{step[2]}x{step[4]}, {step[3]} queries a head, 4 layers", tol=4e-2 if name == "bf16" else 1e-4, work=Work(read=read))(
        functools.partial(attention_step, *step, dtype))


@row("cosine attention f32 2048x64, a learned factor, with gradient", tol=1e-3, timeout=200, work=Work(flops=2 * 2048 * 2048 * 64 * 4 * 7))
def cosine_attention():
    """Queries and keys of length one, the scores times a factor of each head (Swin Transformer V2)."""
    q, k, v, w = (normal(1, 2048, 4, 64, seed=i) for i in range(4))

    def one(x):
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    def loss(q, k, v, t, w):
        x = jnp.einsum("bthd,bshd->bhts", one(q), one(k)) * jnp.exp(jnp.minimum(t, np.log(100)))[:, None, None]
        return (jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(x), v) * w).sum()

    return simple(jax.grad(loss, (0, 1, 2, 3)), q, k, v, np.full(4, 1.5, np.float32), w)


# --- a train step -----------------------------------------------------------------------------------


def train_setup(width=256, layers=2, heads=4, kv=2, hidden=768, batch=2, length=512):
    """One AdamW step of a byte-level Llama: scanned and rematerialised layers, bf16 arithmetic, f32 weights."""
    import optax

    head, vocab = width // heads, 256
    shapes = {"q": (width, heads * head), "k": (width, kv * head), "v": (width, kv * head), "o": (heads * head, width),
              "gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    params = {"embed": normal(vocab, width), "out": normal(width, vocab, seed=1) / np.float32(width**0.5), "norm": np.ones(width, np.float32),
              "layers": {k: normal(layers, *s, seed=2 + i) / np.float32(s[0] ** 0.5) for i, (k, s) in enumerate(shapes.items())}
              | {"norm1": np.ones((layers, width), np.float32), "norm2": np.ones((layers, width), np.float32)}}
    at = np.arange(length)

    def norm(x, w):
        return rmsnorm(x.astype(jnp.float32)).astype(x.dtype) * w.astype(x.dtype)

    def turn(x):
        return jax.vmap(lambda x: rotary(x, at))(x)

    @jax.checkpoint
    def layer(x, w):
        w = {k: v.astype(x.dtype) for k, v in w.items()}
        y = norm(x, w["norm1"])
        q = turn((y @ w["q"]).reshape(batch, length, heads, head)).reshape(batch, length, kv, heads // kv, head)
        k = turn((y @ w["k"]).reshape(batch, length, kv, head))
        v = (y @ w["v"]).reshape(batch, length, kv, head)
        s = jnp.einsum("bqkgd,bskd->bkgqs", q, k, preferred_element_type=jnp.float32) / head**0.5
        p = jax.nn.softmax(jnp.where(at[:, None] >= at, s, -1e30)).astype(x.dtype)
        x = x + jnp.einsum("bkgqs,bskd->bqkgd", p, v).reshape(batch, length, -1) @ w["o"]
        y = norm(x, w["norm2"])
        return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"], None

    def loss(params, tokens, targets):
        x = params["embed"].astype(jnp.bfloat16)[tokens]
        x, _ = lax.scan(layer, x, params["layers"])
        logits = jnp.einsum("bsd,dv->bsv", norm(x, params["norm"]), params["out"].astype(x.dtype), preferred_element_type=jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    adam = optax.adamw(3e-3)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, tokens, targets):
        params, moments = state
        value, grads = jax.value_and_grad(loss)(params, tokens, targets)
        updates, moments = adam.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    params = jax.tree.map(jnp.asarray, params)
    text = np.random.default_rng(0).integers(0, 64, batch * length + 1).astype(np.int32)
    return step, (params, adam.init(params)), (jnp.asarray(text[:-1].reshape(batch, length)), jnp.asarray(text[1:].reshape(batch, length)))


@row("train step", alone=True, tol=2e-2, quick=True, floor=0.9)
def train():
    step, state, batch = train_setup()
    return Case(step, (state, *batch), keep=lambda args, out: (out[0], *args[1:]), sample=lambda out: out[1])


# Layouts as rules of logical axes give them: the mesh, axes of rows, of the sequence between layers, of weights' features and heads.
SHARDED = {
    "data 8": ({"d": 8}, "d", None, None, None),
    "fsdp 8": ({"f": 8}, "f", None, "f", None),
    "tensor 8": ({"t": 8}, None, None, None, "t"),
    "tensor 8, sequence": ({"t": 8}, None, "t", None, "t"),
    "data 2 x fsdp 2 x tensor 2": ({"d": 2, "f": 2, "t": 2}, ("d", "f"), None, "f", "t"),
}


def sharded_step(axes, rows, seq, fsdp, tensor, width=256, layers=4, heads=8, hidden=1024, batch=8, length=128):
    """A step of gradient descent through scanned Llama layers, whose arguments alone say how they are sharded."""
    m = mesh(**axes)
    sizes = {"q": (width, width), "k": (width, width), "v": (width, width), "o": (width, width), "gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    down = ("o", "down")
    weights = {k: place(normal(layers, *s, seed=i) / np.float32(s[0] ** 0.5), m, P(None, tensor, fsdp) if k in down else P(None, fsdp, tensor))
               for i, (k, s) in enumerate(sizes.items())}
    x, y = (place(normal(batch, length, width, seed=s), m, P(rows, seq)) for s in (8, 9))
    at = np.arange(length)

    def layer(x, w):
        z = rmsnorm(x)
        q, k, v = ((z @ w[n]).reshape(batch, length, heads, -1) for n in "qkv")
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.float32(width / heads) ** 0.5
        p = jax.nn.softmax(jnp.where(at[:, None] >= at, s, -1e30))
        x = x + jnp.einsum("bhqk,bkhd->bqhd", p, v).reshape(x.shape) @ w["o"]
        z = rmsnorm(x)
        return x + (jax.nn.silu(z @ w["gate"]) * (z @ w["up"])) @ w["down"], None

    def loss(w, x, y):
        return ((lax.scan(layer, x, w)[0] - y) ** 2).mean()

    @jax.jit
    def step(w, x, y):
        l, g = jax.value_and_grad(loss)(w, x, y)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, g), l

    return Case(step, (weights, x, y), keep=lambda args, out: (out[0], *args[1:]), sample=lambda out: out[1])


# Three products of each weight and each row, three of scores and of what is made of them.
STEP_FLOPS = 4 * 2 * 3 * 8 * 128 * (4 * 256 * 256 + 3 * 256 * 1024 + 2 * 128 * 256)
for _name, _layout in SHARDED.items():
    row(f"step, {_name}", devices=8, floor=0.6, work=Work(flops=STEP_FLOPS, devices=8))(functools.partial(sharded_step, *_layout))
