#!/usr/bin/env python3
"""What waiting costs where devices could compute: programs of which one part is late, beside the same work with nothing to wait for.

    bench/overlap.py                    all of it
    bench/overlap.py --only late,link
    bench/overlap.py --only late,uneven --work small        products of 200 x 200; elements: sines and exponentials

late    a sum over two devices, for which device 0 comes N products late, while device 1 has 2N that need no sum and device 0 has N; the sum
        is written first, or last.  The limit is 2N products on each device.
uneven  four devices, of which one has four times the work of the others, then a sum.  The limit is the same work cut evenly for as many devices as there are cores.
link    two processes on two hosts (network namespaces, root) with a cable of few Mb/s: each gathers what the other has beside products that take
        about as long.  The limit is the longer of the two by itself.
calls   the same with Cholesky factors, which code outside Rondo computes.
ring    the same hosts: attention, and its gradient, over a sequence that they share.  The limit is the longer of the same attention with all keys there,
        and of what a host needs of the other: keys and values; of the gradient these, queries and cotangents, and sums of one of the pairs.

Rows take turns; a figure is the median over rounds, the ratio is the median of each round's time over that of the limit in the same round."""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROWS = {"late": 2, "uneven": 4, "link": 1, "calls": 1, "ring": 1}


def turns(rounds, rows, limit):
    """rows: name -> a call that does it once.  Prints each beside the limit, which is some of the rows."""
    took = {name: [] for name in rows}
    for f in rows.values():
        f()
    for _ in range(rounds):
        for name, f in rows.items():
            start = time.perf_counter()
            f()
            took[name].append(time.perf_counter() - start)
    for name in rows:
        ratio = [took[name][i] / max(took[k][i] for k in limit) for i in range(rounds)]
        print(f"{name:28} {1e3 * statistics.median(took[name]):9.2f} ms  {statistics.median(ratio):6.3f}", flush=True)


def work(what, rounds, kind):
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    n = 200 if kind == "small" else 512
    mesh = Mesh(np.array(jax.devices()), ("i",))
    ndev = len(jax.devices())

    def products(x, w, turns):
        if kind == "elements":
            return lax.fori_loop(0, 3 * turns, lambda _, a: jnp.sin(a) + jnp.exp(-a * a), x)
        return lax.fori_loop(0, turns * (512 // n) ** 2, lambda _, a: a @ w, x)

    def over(f, out):
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(P("i"), P("i"), P()), out_specs=out, check_vma=False))

    def put(a, spec):
        return jax.make_array_from_callback(a.shape, NamedSharding(mesh, spec), lambda i: a[i])

    x = put(np.full((ndev * n, n), 1 / n, np.float32), P("i"))
    w = put(np.eye(n, dtype=np.float32), P())
    turn = 16

    def first(x, z, w):
        i = lax.axis_index("i")
        s = lax.psum(products(x, w, jnp.where(i == 0, turn, 0)), "i")
        return s, products(z, w, jnp.where(i == 0, turn, 2 * turn))

    def last(x, z, w):
        i = lax.axis_index("i")
        z = products(z, w, jnp.where(i == 0, turn, 2 * turn))
        return lax.psum(products(x, w, jnp.where(i == 0, turn, 0)), "i"), z

    def plain(x, z, w):
        return products(z, w, 2 * turn)

    def uneven(x, z, w):
        return lax.psum(products(x, w, jnp.where(lax.axis_index("i") == 0, 4 * turn, turn)), "i")

    def even(x, z, w):
        cores = min(len(os.sched_getaffinity(0)), ndev)
        return lax.psum(products(x, w, jnp.where(lax.axis_index("i") < cores, (3 + ndev) * turn // cores, 0)), "i")

    def silent():
        if jax.process_index():
            sys.stdout = open(os.devnull, "w")

    def call(f, out, *args):
        f = over(f, out)
        return lambda: jax.block_until_ready(f(*args))

    if what == "late":
        turns(rounds, {"late: products alone": call(plain, P("i"), x, x, w), "late: sum first": call(first, (P(), P("i")), x, x, w),
                       "late: sum last": call(last, (P(), P("i")), x, x, w)}, ["late: products alone"])
    elif what == "uneven":
        turns(rounds, {"uneven: cut evenly": call(even, P(), x, x, w), "uneven: one has four times": call(uneven, P(), x, x, w)}, ["uneven: cut evenly"])
    elif what == "ring":
        rows, heads, depth = 8192, 4, 64
        q, k, v, ct = (put(np.random.default_rng(i).normal(size=(1, rows, heads, depth)).astype(jnp.bfloat16), P(None, "i")) for i in range(4))
        every = [put(np.asarray(np.random.default_rng(i).normal(size=(1, rows, heads, depth)), jnp.bfloat16), P()) for i in (1, 2)]
        cut = NamedSharding(mesh, P(None, "i"))

        def attention(q, k, v):
            return jax.nn.dot_product_attention(q, k, v)

        def gradient(q, k, v, ct):
            return jax.vjp(attention, q, k, v)[1](ct)

        def jitted(f, *args, out=cut):
            f = jax.jit(f, out_shardings=out)
            return lambda: jax.block_until_ready(f(*args))

        def travels(n):
            return jax.jit(jax.shard_map(lambda *x: [lax.ppermute(a, "i", [(0, 1), (1, 0)]) for a in x], mesh=mesh, in_specs=(P(None, "i"),) * n, out_specs=[P(None, "i")] * n))

        pair, all_ = travels(2), travels(6)            # a sum in f32 is as long as two of the others
        silent()
        turns(rounds, {"ring: computed alone": jitted(attention, q, *every), "ring: sent alone": lambda: jax.block_until_ready(pair(k, v)), "ring: attention": jitted(attention, q, k, v)},
              ["ring: computed alone", "ring: sent alone"])
        here = jax.jit(jax.shard_map(gradient, mesh=mesh, in_specs=(P(None, "i"), P(), P(), P(None, "i")), out_specs=(P(None, "i"),) * 3, check_vma=False))
        turns(rounds, {"ring: gradient alone": lambda: jax.block_until_ready(here(q, *every, ct)), "ring: its bytes alone": lambda: jax.block_until_ready(all_(k, v, q, ct, q, ct)),
                       "ring: gradient": jitted(gradient, q, k, v, ct, out=(cut,) * 3)}, ["ring: gradient alone", "ring: its bytes alone"])
    else:
        big = put(np.ones((ndev * 1024, 2048), np.float32), P("i"))      # 8 MB a device

        def factors(x, w, turns):
            return lax.fori_loop(0, turns, lambda _, a: jnp.linalg.cholesky(a + w) + w, x)

        compute, name = (factors, "factors") if what == "calls" else (products, "products")

        def gather(b, z, w):
            return lax.all_gather(b, "i").sum((0, 1))

        def both(b, z, w):
            return lax.all_gather(b, "i").sum((0, 1)), compute(z, w, both.turns)

        def alone(b, z, w):
            return compute(z, w, both.turns)

        travels = call(gather, P(), big, x, w)
        both.turns = 8
        computes = call(alone, P("i"), big, x, w)
        for f in (travels, computes):
            f()
        start = time.perf_counter()
        travels()
        mid = time.perf_counter()
        computes()
        took = np.array([mid - start, time.perf_counter() - mid])
        if jax.process_count() > 1:                    # one length for all
            from jax.experimental import multihost_utils
            took = np.asarray(multihost_utils.broadcast_one_to_all(took))
        both.turns = max(1, int(8 * took[0] / took[1]))
        silent()
        turns(rounds, {f"{what}: gather alone": travels, f"{what}: {name} alone": call(alone, P("i"), big, x, w), f"{what}: both": call(both, (P(), P("i")), big, x, w)},
              [f"{what}: gather alone", f"{what}: {name} alone"])


def hosts_apart(what, rounds, env, rate):
    sys.path.insert(0, str(HERE))
    from net import ADDRESS, Hosts

    with Hosts() as hosts:
        for name in hosts.name:
            subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "wire", "root", "tbf", "rate", rate, "burst", "256kb", "latency", "200ms"], check=True)
        jobs = [subprocess.Popen(["ip", "netns", "exec", hosts.name[i], "taskset", "-c", str(i), sys.executable, __file__, "--inside", what, "--rounds", str(rounds),
                                  "--process", str(i), "--address", f"{ADDRESS[0]}:24681"], env=env) for i in (0, 1)]
        if any(j.wait(timeout=900) for j in jobs):
            sys.exit(f"{what}: a process failed")


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--only", default=",".join(ROWS), help="some of " + ", ".join(ROWS))
    a.add_argument("--rounds", type=int, default=11)
    a.add_argument("--rate", default="1gbit", help="of the cable")
    a.add_argument("--work", default="products", choices=["products", "small", "elements"], help="what is computed in late and uneven")
    a.add_argument("--inside", help=argparse.SUPPRESS)
    a.add_argument("--process", type=int, default=-1, help=argparse.SUPPRESS)
    a.add_argument("--address", help=argparse.SUPPRESS)
    o = a.parse_args()
    if o.inside:
        if o.process >= 0:
            import rondo.early  # noqa: F401
            import jax
            jax.distributed.initialize(o.address, 2, o.process)
        work(o.inside, o.rounds, o.work)
        return
    for what in o.only.split(","):
        if what not in ROWS:
            a.error(f"no row '{what}': it is one of {', '.join(ROWS)}")
        env = dict(os.environ, JAX_PLATFORMS=os.environ.get("JAX_PLATFORMS", "rondo,cpu"), RONDO_DEVICES=str(ROWS[what]))
        if ROWS[what] == 1:
            hosts_apart(what, o.rounds, env, o.rate)
        else:
            subprocess.run([sys.executable, __file__, "--inside", what, "--rounds", str(o.rounds), "--work", o.work], env=env, check=True)


if __name__ == "__main__":
    main()
