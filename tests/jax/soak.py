"""Many steps of training on many devices, with random pauses: losses must be those of the same steps without.

    python tests/jax/soak.py --steps 10000                     devices: RONDO_DEVICES, processes: rondo launch
    RONDO_CHAOS=3 RONDO_DEVICES=8 python tests/jax/soak.py --steps 10000 --expect losses.txt

Data-parallel steps of a small network, written with shard_map: an all-reduce of gradients, a ring of activations, and a
gather.  Prints a digest of all losses, the same on every run whatever was delayed.
"""
import argparse
import hashlib
import os
import random
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--pauses", type=float, default=0.01, help="share of steps after which the host sleeps a little")
    a = parser.parse_args()
    if int(os.environ.get("RONDO_PROCESSES") or 1) > 1:
        jax.distributed.initialize()
    n = len(jax.devices())
    mesh = Mesh(np.array(jax.devices()), ("d",))
    rows, width = 8, 32

    def loss(w, x):
        h = jnp.tanh(x @ w["a"])
        h = h + jax.lax.ppermute(h, "d", [(i, (i + 1) % n) for i in range(n)])
        return jnp.mean((h @ w["b"] - x) ** 2)

    def step(w, x, t):
        x = x * (1 + 0.1 * jnp.sin(t.astype(jnp.float32)))
        l, g = jax.value_and_grad(loss)(w, x)
        g = jax.tree.map(lambda v: jax.lax.psum(v, "d") / n, g)
        all_l = jax.lax.all_gather(l, "d")
        return jax.tree.map(lambda v, d: v - 0.05 * d, w, g), x, t + 1, all_l

    f = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P("d"), P()), out_specs=(P(), P("d"), P(), P()), check_vma=False),
                donate_argnums=(0,))
    key = np.random.default_rng(0)
    put = lambda v, spec: jax.make_array_from_callback(v.shape, NamedSharding(mesh, spec), lambda i: v[i])
    w = {k: put((key.normal(size=(width, width)) / width ** 0.5).astype(np.float32), P()) for k in "ab"}
    x0 = put(key.normal(size=(n * rows, width)).astype(np.float32), P("d"))
    t, pause = put(np.zeros((), np.int32), P()), random.Random(os.getpid())
    digest, since, last = hashlib.sha256(), time.time(), []
    for i in range(a.steps):
        w, _, t, l = f(w, x0, t)
        last.append(l)
        if pause.random() < a.pauses:
            time.sleep(pause.random() * 0.01)
        if len(last) == 100 or i + 1 == a.steps:
            for v in last:
                digest.update(np.asarray(v.addressable_shards[0].data).tobytes())
            last = []
            if sys.stderr.isatty():
                print(f"\r{i + 1} of {a.steps} steps", end="", file=sys.stderr)
    final = np.asarray(l.addressable_shards[0].data)
    assert np.isfinite(final).all()
    print(f"{n} devices, {a.steps} steps in {time.time() - since:.1f} s, losses {digest.hexdigest()[:16]}, last {final.mean():.6f}", flush=True)


main()
