#!/usr/bin/env python3
"""Collectives between processes, or between the devices of one, inside one program: Rondo beside JAX's own cpu platform,
which uses gloo between processes.

    python bench/processes.py [--processes 2] [--devices 1] [--ops psum,ppermute] [--sizes 8,1024,..] [--rounds 5]

Both jobs live at the same time and take turns, sample by sample; the medians are printed.  A sample is a loop of
many collectives in one program, so what is timed is the collective, not the call.
"""
import argparse
import os
import pathlib
import socket
import statistics
import subprocess
import sys

OPS = ["psum", "ppermute", "all_gather", "psum_scatter", "all_to_all"]


def worker(platform):
    import time

    import jax
    if platform == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    me, n = int(os.environ["PROCESS"]), int(os.environ["PROCESSES"])
    jax.config.update("jax_platforms", "cpu" if platform == "cpu" else "rondo,cpu")
    jax.config.update("jax_num_cpu_devices", int(os.environ["DEVICES"]))
    if n > 1:
        jax.distributed.initialize(os.environ["COORDINATOR"], n, me)
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    mesh = Mesh(np.array(jax.devices()), ("x",))
    size = mesh.size
    ring = [(i, (i + 1) % size) for i in range(size)]
    body = {
        "psum": lambda x: lax.psum(x, "x") * (1 / size),
        "ppermute": lambda x: lax.ppermute(x, "x", ring),
        # So that the loop goes on with what came: a part of it that depends on all.
        "all_gather": lambda x: lax.all_gather(x, "x", tiled=True)[:x.shape[0]],
        "psum_scatter": lambda x: jnp.tile(lax.psum_scatter(x, "x", tiled=True), size) * (1 / size),
        "all_to_all": lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True),
    }
    made = {}
    print("ready", flush=True)
    for line in sys.stdin:
        op, count, turns = line.split()
        key = op, int(count)
        if key not in made:
            x = jax.make_array_from_callback((int(count) * size,), NamedSharding(mesh, P("x")), lambda i: np.ones(int(count), np.float32))
            f = jax.jit(jax.shard_map(lambda x, k, op=op: lax.fori_loop(0, k, lambda _, x: body[op](x), x), mesh=mesh,
                                      in_specs=(P("x"), P()), out_specs=P("x"), check_vma=False))
            made[key] = f, x
            f(x, np.int32(1)).block_until_ready()
        f, x = made[key]
        best = None
        for _ in range(3):
            f(x, np.int32(2)).block_until_ready()      # all are awake
            begin = time.perf_counter()
            f(x, np.int32(turns)).block_until_ready()
            t = (time.perf_counter() - begin) / int(turns)
            best = t if best is None else min(best, t)
        print(best, flush=True)


class Job:
    def __init__(self, platform, processes, devices):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        env = {**os.environ, "PROCESSES": str(processes), "DEVICES": str(devices), "COORDINATOR": f"127.0.0.1:{port}", "TF_CPP_MIN_LOG_LEVEL": "3"}
        self.all = [subprocess.Popen([sys.executable, __file__, "--worker", platform], env={**env, "PROCESS": str(i)}, text=True,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE) for i in range(processes)]
        for p in self.all:
            self.answer(p)

    def answer(self, p):
        while line := p.stdout.readline():
            if not line.startswith("[Gloo]"):          # it prints there what it is doing
                return line
        raise SystemExit("a process has ended")

    def sample(self, op, count, turns):
        for p in self.all:
            p.stdin.write(f"{op} {count} {turns}\n")
            p.stdin.flush()
        return max(float(self.answer(p)) for p in self.all)

    def end(self):
        for p in self.all:
            p.stdin.close()
        for p in self.all:
            p.wait()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--worker", help=argparse.SUPPRESS)
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--devices", type=int, default=1, help="of one process")
    p.add_argument("--ops", default=",".join(OPS))
    p.add_argument("--sizes", default="8,64,1024,16384,65536,1048576,16777216", help="bytes of one device")
    p.add_argument("--rounds", type=int, default=5)
    a = p.parse_args()
    if a.worker:
        return worker(a.worker)
    jobs = {k: Job(k, a.processes, a.devices) for k in ("rondo", "cpu")}
    peer = "gloo" if a.processes > 1 else "XLA:CPU"
    print(f"# {a.processes} process{'es' * (a.processes > 1)} x {a.devices} devices, us a collective, median of {a.rounds} interleaved rounds; load {os.getloadavg()[0]:.1f}")
    print(f"{'op':<14}{'bytes':>10}{'rondo':>12}{peer:>12}{'ratio':>9}{'rondo GB/s':>12}")
    for op in a.ops.split(","):
        for size in map(int, a.sizes.split(",")):
            count = max(size // 4, a.processes * a.devices)
            turns = {"rondo": max(3, min(2000, int(2e8 / (size + 1e5)))), "cpu": max(2, min(60, int(2e7 / (size + 3e5))))}
            times = {k: [] for k in jobs}
            for _ in range(a.rounds):
                for k, j in jobs.items():
                    times[k].append(j.sample(op, count, turns[k]))
            r, g = (statistics.median(times[k]) * 1e6 for k in ("rondo", "cpu"))
            print(f"{op:<14}{count * 4:>10}{r:>12.2f}{g:>12.1f}{g / r:>8.1f}x{count * 4 / r / 1e3:>12.2f}", flush=True)
    for j in jobs.values():
        j.end()


if __name__ == "__main__":
    here = pathlib.Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(here / "python"))
    os.environ.setdefault("RONDO_LIBRARY", str(here / "build" / "librondo.so"))      # not one that was installed some time ago
    main()
