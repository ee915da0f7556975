"""Many steps of training on many devices, with random pauses: losses must be those of the same steps without.

    python tests/jax/soak.py --steps 10000                     devices: RONDO_DEVICES, processes: rondo launch
    RONDO_CHAOS=3 RONDO_DEVICES=8 python tests/jax/soak.py --steps 10000
    RONDO_REPRO=4 RONDO_ATTENTION=on python tests/jax/soak.py --model long --steps 10000
    RONDO_REPRO=4 RONDO_ATTENTION=on RONDO_CHAOS=3 rondo launch -n 4 python tests/jax/soak.py --model long --steps 10000 --stops 1

--model sums: data-parallel steps of a small network, written with shard_map: an all-reduce of gradients, a ring of activations, and a
gather; the same bits for one number of devices, in whatever processes.  --model long: a small Llama whose sequence is split over the
devices, in plain code (examples/train_long.py); the same bits on any number of them under RONDO_REPRO.  Prints a digest of all losses
(and the weights in the end), the same on every run whatever was delayed, and whoever was stopped for a while.
"""
import argparse
import hashlib
import mmap
import os
import pathlib
import random
import signal
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=["sums", "long"], default="sums")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--pauses", type=float, default=0.01, help="share of steps after which the host sleeps a little")
parser.add_argument("--stops", type=float, default=0, help="the process is stopped at random moments, so many seconds apart in the mean, for some 20 ms")
ARGS = parser.parse_args()
STOPS = mmap.mmap(-1, 8)      # how often that was


def stop_me():
    """A child stops this process now and then, and lets it go on, until it has ended."""
    me = os.getpid()
    if os.fork():
        return
    os.closerange(0, 1024)
    draw, n = random.Random(me), 0
    while True:
        time.sleep(draw.expovariate(1 / ARGS.stops))
        if os.getppid() != me:
            os._exit(0)
        os.kill(me, signal.SIGSTOP)
        time.sleep(draw.expovariate(50))
        os.kill(me, signal.SIGCONT)
        n += 1
        STOPS[:] = n.to_bytes(8, "little")


if ARGS.stops:
    stop_me()      # before there are threads

LENGTH = 1024
sys.argv[1:] = ["--devices", "1", "--steps", str(ARGS.steps), "--batch", "1", "--length", str(LENGTH), "--layers", "1", "--width", "64"]
sys.path.append(str(pathlib.Path(__file__).parents[2] / "examples"))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import llama  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402
import train_long  # noqa: E402


def put(mesh, v, spec=P()):
    return jax.make_array_from_callback(v.shape, NamedSharding(mesh, spec), lambda i: v[i])


def sums(mesh):
    """The next step's losses, again and again; behind them nothing."""
    n, rows, width = mesh.size, 8, 32

    def loss(w, x):
        h = jnp.tanh(x @ w["a"])
        h = h + jax.lax.ppermute(h, "x", [(i, (i + 1) % n) for i in range(n)])
        return jnp.mean((h @ w["b"] - x) ** 2)

    def step(w, x, t):
        x = x * (1 + 0.1 * jnp.sin(t.astype(jnp.float32)))
        l, g = jax.value_and_grad(loss)(w, x)
        g = jax.tree.map(lambda v: jax.lax.psum(v, "x") / n, g)
        all_l = jax.lax.all_gather(l, "x")
        return jax.tree.map(lambda v, d: v - 0.05 * d, w, g), x, t + 1, all_l

    f = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P("x"), P()), out_specs=(P(), P("x"), P(), P()), check_vma=False),
                donate_argnums=(0,))
    key = np.random.default_rng(0)
    w = {k: put(mesh, (key.normal(size=(width, width)) / width ** 0.5).astype(np.float32)) for k in "ab"}
    x, t = put(mesh, key.normal(size=(n * rows, width)).astype(np.float32), P("x")), put(mesh, np.zeros((), np.int32))
    for _ in range(ARGS.steps):
        w, _, t, l = f(w, x, t)
        yield l
    yield from w.values()


def long(mesh):
    """As sums: a Llama on random tokens, 16 sequences that come again and again."""
    opt, key = llama.optimiser(), np.random.default_rng(0)
    w = jax.jit(llama.weights)(jax.random.key(0))
    state = jax.jit(opt.init)(w)
    w, state = jax.tree.map(lambda v: put(mesh, np.asarray(v)), (w, state))
    step = train_long.step_of(opt, mesh)
    tokens = [key.integers(0, 256, (1, LENGTH + 1)).astype(np.int32) for _ in range(16)]
    tokens = [(put(mesh, x[:, :-1], P(None, "x")), put(mesh, x[:, 1:], P(None, "x"))) for x in tokens]
    for i in range(ARGS.steps):
        w, state, l = step(w, state, *tokens[i % len(tokens)])
        yield l
    yield from jax.tree.leaves(w)


def main():
    if int(os.environ.get("RONDO_PROCESSES") or 1) > 1:
        jax.distributed.initialize()
    mesh = Mesh(np.array(jax.devices()), ("x",))
    pause, digest, since, last, final = random.Random(os.getpid()), hashlib.sha256(), time.time(), [], None

    def look():
        for v in last:
            digest.update(np.asarray(v.addressable_shards[0].data).tobytes())
        last.clear()

    for i, v in enumerate((sums if ARGS.model == "sums" else long)(mesh), 1):
        last.append(v)
        final = v if i == ARGS.steps else final
        if pause.random() < ARGS.pauses:
            time.sleep(pause.random() * 0.01)
        if len(last) == 100:
            look()
            if sys.stderr.isatty():
                print(f"\r{i} of {ARGS.steps} steps", end="", file=sys.stderr)
    look()
    final = np.asarray(final.addressable_shards[0].data)
    assert np.isfinite(final).all()
    print(f"{mesh.size} devices, {ARGS.steps} steps in {time.time() - since:.1f} s, stopped {int.from_bytes(STOPS[:], 'little')} times, "
          f"losses {digest.hexdigest()[:16]}, last {final.mean():.6f}", flush=True)


main()
