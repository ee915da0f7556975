"""Programs of several devices beside processes that keep the cores busy: Rondo and JAX's own cpu in turns, in one process.

    python bench/busy.py                        2 and 8 devices beside 0, 1 and 2 processes
    python bench/busy.py --devices 4 --beside 1 --rounds 51

A program is 50 psums of 32 KB, one after the other; ratio: Rondo's time over XLA:CPU's.  Which core the scheduler gives whom makes much of
the difference between two runs: hence the quartiles.
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

CHAIN, COUNT = 50, 8192


def program(jax, platform, n):
    """The function, and its operand."""
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    mesh = Mesh(np.array(jax.devices(platform)[:n]), "x")

    def chain(v):
        return jax.lax.fori_loop(0, CHAIN, lambda i, v: jax.lax.psum(v * np.float32(1 / (2 * n)), "x"), v)
    f = jax.jit(jax.shard_map(chain, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
    x = jax.device_put(np.ones(COUNT * n, np.float32), NamedSharding(mesh, P("x")))
    f(x).block_until_ready()
    return f, x


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--devices", type=int, nargs="*", default=[2, 8])
    p.add_argument("--beside", type=int, nargs="*", default=[0, 1, 2], help="processes that compute without end")
    p.add_argument("--rounds", type=int, default=25)
    a = p.parse_args()
    most = max(a.devices)
    os.environ |= {"JAX_PLATFORMS": "rondo,cpu", "RONDO_DEVICES": str(most), "XLA_FLAGS": f"--xla_force_host_platform_device_count={most}"}
    import jax
    made = {n: {w: program(jax, w, n) for w in ("cpu", "rondo")} for n in a.devices}
    print(f"{'devices':>7} {'beside':>6} {'XLA:CPU ms':>10} {'quartiles':>15} {'Rondo ms':>10} {'quartiles':>15} {'ratio':>6}")
    for n in a.devices:
        for k in a.beside:
            times = {w: [] for w in made[n]}
            others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(k)]
            try:
                for _ in range(a.rounds):
                    for w, (f, x) in made[n].items():
                        begun = time.perf_counter()
                        f(x).block_until_ready()
                        times[w].append(1e3 * (time.perf_counter() - begun))
            finally:
                for other in others:
                    other.kill()
                    other.wait()
            cells = []
            for w in times:
                low, middle, high = statistics.quantiles(times[w], n=4)
                cells += [f"{middle:10.2f}", f"{low:7.2f}-{high:.2f}".rjust(15)]
            print(f"{n:7} {k:6}", *cells, f"{statistics.median(times['rondo']) / statistics.median(times['cpu']):6.2f}", flush=True)


main()
