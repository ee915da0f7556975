"""The benchmark's cases, run in this process on the platform that JAX_PLATFORMS names.

    python cases.py [PATTERN ...]       prints one line "name<TAB>seconds" a case: of one unit, the median

Each case is a function that returns (call, units): call() does the work and waits for it.
"""
import fnmatch
import functools
import statistics
import sys
import time

import jax

jax.config.update("jax_num_cpu_devices", 2)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

CASES = {}


def case(name, *args):
    def mark(build):
        CASES[name] = functools.partial(build, *args)
        return build
    return mark


def normal(*shape, dtype=np.float32, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32), dtype)


def jitted(f, *args, units=1):
    f = jax.jit(f)
    return lambda: jax.block_until_ready(f(*args)), units


# --- overhead -----------------------------------------------------------------


@case("dispatch jit(x+1)")
def dispatch():
    f = jax.jit(lambda x: x + 1)
    x = jnp.zeros(4)

    def call():
        y = x
        for _ in range(2000):
            y = f(y)
        y.block_until_ready()
    return call, 2000


@case("compile one op")
def compile_one():
    """Bytecode to executable; every program is a new one."""
    programs = iter([jax.jit(lambda x, k=k: x * np.float32(k + time.time_ns() % 1000)).lower(np.ones(8, np.float32)) for k in range(200)])

    def call():
        for _ in range(10):
            next(programs).compile()
    return call, 10


@case("while, one turn", 3_000_000)
def turns(n):
    return jitted(lambda x: lax.fori_loop(0, n, lambda i, x: jnp.sin(x) + i, x), jnp.ones(8), units=n)


# --- matrix products ----------------------------------------------------------


@case("matmul bf16 1x4096x14336", 1, 4096, 14336)
@case("matmul bf16 512", 512, 512, 512)
@case("matmul bf16 1024", 1024, 1024, 1024)
@case("matmul bf16 2048", 2048, 2048, 2048)
@case("matmul bf16 4096", 4096, 4096, 4096)
def matmul(m, k, n):
    return jitted(jnp.matmul, normal(m, k, dtype=jnp.bfloat16), normal(k, n, dtype=jnp.bfloat16, seed=1))


# --- memory -------------------------------------------------------------------


@case("cache update 4Kx256", 4096)
@case("cache update 64Kx256", 65536)
def cache_update(rows):
    f = jax.jit(lambda c, r, i: lax.dynamic_update_slice(c, r, (i, 0)), donate_argnums=0)
    box, row = [jnp.zeros((rows, 256), jnp.bfloat16)], jnp.ones((1, 256), jnp.bfloat16)

    def call():
        for i in range(20):
            box[0] = f(box[0], row, np.int32(i))
        box[0].block_until_ready()
    return call, 20


case("sort 1M")(lambda: jitted(jnp.sort, normal(1 << 20)))
case("cumsum 8192x1024")(lambda: jitted(lambda x: jnp.cumsum(x, 0), normal(8192, 1024)))
case("transpose 4096x4096")(lambda: jitted(lambda x: x.T + 1, normal(4096, 4096)))
case("random bits 16M")(lambda: jitted(lambda k: jax.random.bits(k, (1 << 24,)), jax.random.key(1, impl="threefry2x32")))
case("softmax 4096x4096")(lambda: jitted(jax.nn.softmax, normal(4096, 4096)))


@case("rotary 4096x32x128")
def rotary():
    def f(x):
        s, d = x.shape[0], x.shape[-1]
        angle = jnp.arange(s)[:, None] / 10000 ** (jnp.arange(0, d, 2) / d)
        cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
        a, b = jnp.split(x.astype(jnp.float32), 2, -1)
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(x.dtype)
    return jitted(f, normal(4096, 32, 128, dtype=jnp.bfloat16))


@case("scatter-add 8192 of 128256x1024")
def scatter_add():
    at = jnp.asarray(np.random.default_rng(0).integers(0, 128256, 8192))
    return jitted(lambda t, i, g: jnp.zeros_like(t).at[i].add(g), normal(128256, 1024), at, normal(8192, 1024, seed=1))


# --- two devices --------------------------------------------------------------


def two(f, n):
    """1000 (or 50) rounds of f inside one program."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    rounds = 1000 if n < 1000 else 50
    body = lambda x: lax.fori_loop(0, rounds, lambda i, x: f(x), x)  # noqa: E731
    g = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
    x = jax.device_put(np.ones(2 * n, np.float32), NamedSharding(mesh, P("x")))
    return lambda: jax.block_until_ready(g(x)), rounds


for size, n in ("8 B", 2), ("1 MB", 1 << 18):
    case(f"psum {size}")(functools.partial(two, lambda x: lax.psum(x, "x") * 0.5, n))
    case(f"ppermute {size}")(functools.partial(two, lambda x: lax.ppermute(x, "x", [(0, 1), (1, 0)]), n))


# --- a training step ----------------------------------------------------------


def llama(width=256, layers=6, heads=8, length=512, batch=2, vocab=256):
    """(step, weights, tokens): SGD on a byte-level Llama, layers in a scan with remat."""
    rng = np.random.default_rng(0)
    make = lambda *s: jnp.asarray(rng.normal(size=s).astype(np.float32) * s[-2] ** -0.5)  # noqa: E731
    w = dict(embed=make(vocab, width), layers=dict(
        qkv=make(layers, width, 3 * width), out=make(layers, width, width), up=make(layers, width, 6 * width),
        down=make(layers, 3 * width, width)))
    mask = np.tri(length, dtype=bool)

    def norm(x):
        x = x.astype(jnp.float32)
        return (x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)).astype(jnp.bfloat16)

    def layer(x, w):
        w = jax.tree.map(lambda a: a.astype(jnp.bfloat16), w)
        q, k, v = (a.reshape(batch, length, heads, -1) for a in jnp.split(norm(x) @ w["qkv"], 3, -1))
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * (width / heads) ** -0.5
        p = jax.nn.softmax(jnp.where(mask, s, -1e30)).astype(jnp.bfloat16)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", p, v).reshape(batch, length, width) @ w["out"]
        a, b = jnp.split(norm(x) @ w["up"], 2, -1)
        return x + (jax.nn.silu(a) * b) @ w["down"], None

    def loss(w, tokens):
        x = w["embed"].astype(jnp.bfloat16)[tokens[:, :-1]]
        x, _ = lax.scan(jax.checkpoint(layer), x, w["layers"])
        logits = (norm(x) @ w["embed"].astype(jnp.bfloat16).T).astype(jnp.float32)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1).mean()

    def step(w, tokens):
        value, grad = jax.value_and_grad(loss)(w, tokens)
        return jax.tree.map(lambda a, g: a - 0.1 * g, w, grad), value

    return step, w, jnp.asarray(rng.integers(0, vocab, (batch, length + 1)))


@case("train step")
def train_step():
    step, w, tokens = llama()
    f, box = jax.jit(step, donate_argnums=0), [w]

    def call():
        box[0], value = f(box[0], tokens)
        value.block_until_ready()
    return call, 1


@case("compile train step")
def train_compile():
    def lowered():
        step, w, tokens = llama()
        return jax.jit(lambda w, t: step(w, t)).lower(w, tokens)
    programs = iter([lowered() for _ in range(4)])
    return lambda: next(programs).compile(), 1


def measure(build):
    call, units = build()
    call()
    times, begin = [], time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - begin < 0.5 and len(times) < 10):
        t = time.perf_counter()
        call()
        times.append(time.perf_counter() - t)
    return statistics.median(times) / units


def main():
    patterns = sys.argv[1:] or ["*"]
    for name, build in CASES.items():
        if any(fnmatch.fnmatch(name, p) for p in patterns):
            try:
                print(f"{name}\t{measure(build):.4g}", flush=True)
            except Exception as e:  # noqa: BLE001  (the others still count)
                print(f"{name}\tfailed: {type(e).__name__}: {str(e).splitlines()[0][:120]}", flush=True)


if __name__ == "__main__":
    main()
