#!/usr/bin/env python3
"""Attention over a sequence that devices share, by the roads that its keys can take: the same program, unchanged, on each of them.

    bench/roads.py                                   two processes, 8K to 32K tokens, forward and gradient
    bench/roads.py --processes 4 --devices 2 --lengths 8192
    bench/roads.py --processes 1 --devices 4         devices of one process: without MPI and gloo
    bench/roads.py --link 10gbit                     two hosts (network namespaces, root) with a cable of that speed
    bench/roads.py --link 1gbit --hosts 4 --processes 4 --keys 4 --lengths 2048
    bench/roads.py --only symmetric,barrier --markdown

symmetric  as Rondo chooses: what others have is read where it lies, or put there beside computing; halves of uneven work are exchanged, or rows for heads
heads      hosts exchange rows for heads, or devices on one host, where heads of keys divide (RONDO_RING=heads)
in order   as it chooses, but each device does its own rows (RONDO_RING=in_order)
gather     all of it is copied to each device first (RONDO_RING=gather)
sent       in order, from neighbour to neighbour in turns, through buffers that both sides take part in (RONDO_RING=sent, RONDO_COLL=permute=stage)
barrier    the same, and all wait for all behind every hop (RONDO_RING=barrier)
mpi        as sent, by Open MPI (RONDO_COLL=mpi; Debian's openmpi-bin)
XLA:CPU    JAX's own cpu platform, over gloo where there are several processes: it makes scores of S x S, and is left out where they pass --gb

Plain causal attention of bf16 as jax.nn.dot_product_attention, one sharding, keys shared by groups of queries.  All jobs live at once and take
turns, two calls at a time, of which the second counts; a figure is the median over rounds, the slowest process of each call.
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile

from long import drawn
from net import ADDRESS, Hosts

HERE = pathlib.Path(__file__).resolve().parent
STAGED = "permute=stage"
ROADS = {"symmetric": {}, "in order": {"RONDO_RING": "in_order"}, "heads": {"RONDO_RING": "heads"}, "gather": {"RONDO_RING": "gather"}, "sent": {"RONDO_RING": "sent", "RONDO_COLL": STAGED},
         "barrier": {"RONDO_RING": "barrier", "RONDO_COLL": STAGED}, "mpi": {"RONDO_RING": "sent", "RONDO_COLL": "mpi"}, "XLA:CPU": None}
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-q"]


MASKS = "plain", "causal", "window", "documents"


def shape_of(what, length, heads, keys, size, mask="causal", kind="bfloat16"):
    """One line to a worker: forward or gradient, rows, heads, heads of keys, the size of one, mask, type."""
    return f"{what} {mask} {kind} {length} {heads} {keys} {size}"


def worker(at, road):
    """Answers each line of shape_of with seconds and bytes."""
    import time

    import jax

    xla = ROADS[road] is None
    jax.config.update("jax_platforms", "cpu" if xla else "rondo,cpu")
    me, n = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ["PROCESS"])), int(os.environ["PROCESSES"])
    jax.config.update("jax_num_cpu_devices", int(os.environ["DEVICES"]))
    if xla:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if n > 1:
        jax.distributed.initialize(os.environ["COORDINATOR"], n, me)
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    split = NamedSharding(Mesh(np.array(jax.devices()), ("s",)), P(None, "s"))
    made = {}

    def attention(q, k, v, document, mask):
        if mask == "documents":
            return jax.nn.dot_product_attention(q, k, v, mask=(document[:, :, None] == document[:, None, :])[:, None], is_causal=True)
        return jax.nn.dot_product_attention(q, k, v, is_causal=mask != "plain", local_window_size=(q.shape[1] // 8, 0) if mask == "window" else None)

    def gradient(q, k, v, do, document, mask):
        o, back = jax.vjp(lambda *x: attention(*x, document, mask), q, k, v)
        return o, back(do)

    line = socket.socket(socket.AF_UNIX)
    line.connect(at)
    line = line.makefile("rw")
    print("ready", file=line, flush=True)
    for ask in line:
        if ask not in made:
            made.clear()
            what, mask, kind, *sizes = ask.split()
            length, heads, keys, size = map(int, sizes)
            rows, few = (1, length, heads, size), (1, length, keys, size)
            args = [drawn(s, split, i).astype(kind) for i, s in enumerate((rows, few, few, rows)[:3 if what == "forward" else 4])]
            args.append(jax.make_array_from_callback((1, length), split, lambda i, n=length: np.arange(n, dtype=np.int32)[None][i] * 5 // n))
            f = jax.jit(functools.partial(attention if what == "forward" else gradient, mask=mask)).lower(*args).compile()
            made[ask] = f, args, f.memory_analysis().temp_size_in_bytes
            jax.block_until_ready(f(*args))
        f, args, held = made[ask]
        jax.block_until_ready(f(*args))                 # what ran before has the caches, and threads that do not sleep yet
        begin = time.perf_counter()
        jax.block_until_ready(f(*args))
        print(json.dumps([time.perf_counter() - begin, held]), file=line, flush=True)


class Job:
    """The processes of one road; they are asked over a socket, which a namespace of networks does not hide."""

    def __init__(self, road, a, folder, hosts):
        at = os.path.join(folder, road.replace(" ", "-").replace(":", "-"))
        listen = socket.socket(socket.AF_UNIX)
        listen.bind(at)
        listen.listen(a.processes)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        where = ADDRESS[0] if hosts else "127.0.0.1"
        env = {**os.environ, **(ROADS[road] or {}), "PROCESSES": str(a.processes), "DEVICES": str(a.devices), "COORDINATOR": f"{where}:{port}", "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, str(HERE / "roads.py"), "--worker", at, road]
        self.all = []
        with open(at + ".log", "w") as log:
            if road == "mpi":
                self.all.append(subprocess.Popen([*MPIRUN, "-n", str(a.processes), *command], env={**env, "PROCESS": "0"}, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
            for i in range(0 if road == "mpi" else a.processes):
                host = i * a.hosts // a.processes           # gloo goes by what the host's name means
                on = ["ip", "netns", "exec", hosts.name[host], "unshare", "--uts", "sh", "-c", f'hostname {ADDRESS[host]}; exec "$@"', "sh"] if hosts else []
                self.all.append(subprocess.Popen([*on, *command], env={**env, "PROCESS": str(i)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        self.line, self.log = [], at + ".log"
        listen.settimeout(1)
        while len(self.line) < a.processes:
            with contextlib.suppress(TimeoutError):
                self.line.append(listen.accept()[0].makefile("rw"))
            if any(p.poll() is not None for p in self.all):
                raise SystemExit(f"{road}: a process has ended\n{pathlib.Path(self.log).read_text()}")
        for x in self.line:
            self.answer(x)

    def answer(self, x):
        text = x.readline()
        if not text:
            raise SystemExit(f"a process has ended\n{pathlib.Path(self.log).read_text()}")
        return text

    def sample(self, shape):
        for x in self.line:
            print(shape, file=x, flush=True)
        all = [json.loads(self.answer(x)) for x in self.line]
        return max(t for t, _ in all), max(b for _, b in all)

    def end(self):
        for x in self.line:
            x.close()
        for p in self.all:
            p.terminate()
            p.wait()


def row(cells, markdown):
    print(("| " + " | ".join(cells) + " |") if markdown else "".join(f"{c:<10}" if i == 0 else f"{c:>14}" for i, c in enumerate(cells)), flush=True)


def compare(a, jobs, what):
    head = [f"{what}, S", *jobs]
    row(head, a.markdown)
    if a.markdown:
        row(["---"] * len(head), True)
    gains = []
    for length in a.lengths:
        times, held = {k: [] for k in jobs}, {}
        scores = 4 * a.heads * length**2 / (a.processes * a.devices) * (1 if what == "forward" else 3)
        there = {k: j for k, j in jobs.items() if ROADS[k] is not None or scores * a.devices < a.gb * 2**30}
        shape = shape_of(what, length, a.heads, a.keys, a.size)
        for j in there.values():
            j.sample(shape)
        for turn in range(a.rounds):
            for k in [*there][turn % len(there):] + [*there][:turn % len(there)]:
                t, held[k] = there[k].sample(shape)
                times[k].append(t)
        middle = {k: statistics.median(t) for k, t in times.items() if t}
        least = middle.get("symmetric", min(middle.values()))
        row([f"{length // 1024}K", *(f"{1e3 * middle[k]:.1f}  {middle[k] / least:.2f}" if k in middle else "-" for k in jobs)], a.markdown)
        gains.append((length, middle, held))
    print()
    for length, m, held in gains:
        hop = 4 * length // (a.processes * a.devices) * a.keys * a.size
        parts = [(name, m[x] - m[y]) for name, x, y in (("barriers", "barrier", "sent"), ("turns and copies", "sent", "in order"), ("uneven work", "in order", "symmetric"),
                                                          ("the gather", "gather", "symmetric")) if x in m and y in m]
        said = "".join(f"{name} {100 * t / m['symmetric']:+.0f} % of the symmetric time; " for name, t in parts)
        print(f"{length // 1024}K: {hop / 2**20:.2f} MB a hop; {said}temporary MB: " + ", ".join(f"{k} {b / 2**20:.1f}" for k, b in held.items()), flush=True)
    print()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--devices", type=int, default=1, help="of one process")
    p.add_argument("--lengths", type=int, nargs="+", default=[8192, 16384, 32768])
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--keys", type=int, default=2, help="heads of keys and values")
    p.add_argument("--size", type=int, default=64, help="of a head")
    p.add_argument("--what", default="forward,gradient")
    p.add_argument("--only", default=",".join(ROADS))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--gb", type=float, default=6, help="scores of XLA:CPU in all devices of a process, at most")
    p.add_argument("--link", help="the speed of the cables between hosts, as tc says it: 10gbit")
    p.add_argument("--hosts", type=int, default=2, help="with --link")
    p.add_argument("--markdown", action="store_true")
    a = p.parse_args()
    if a.worker:
        return worker(*a.worker)
    names = [k for k in ROADS if k in a.only.split(",")]
    unknown = [k for k in a.only.split(",") if k not in ROADS]
    if unknown or not names:
        p.error(f"no road {', '.join(unknown)}; there are {', '.join(ROADS)}")
    left_out = {k for k in ("mpi",) if a.devices > 1 or a.processes < 2 or a.link or not shutil.which("mpirun")}
    names = [k for k in names if k not in left_out]
    with tempfile.TemporaryDirectory() as folder, Hosts(a.hosts) if a.link else contextlib.nullcontext() as hosts:
        if a.link:
            hosts.limit(a.link)
        jobs = {k: Job(k, a, folder, hosts) for k in names}
        print(f"# {a.processes} process{'es' * (a.processes > 1)} x {a.devices} device{'s' * (a.devices > 1)}{f', {a.hosts} hosts at {a.link}' if a.link else ''}, heads {a.heads}/{a.keys} of {a.size}; "
              f"ms, and times the symmetric road; median of {a.rounds} interleaved rounds; load {os.getloadavg()[0]:.1f}\n")
        for what in a.what.split(","):
            compare(a, jobs, what)
        for j in jobs.values():
            j.end()


def this_tree():
    """The library and the modules of this clone, not what was installed some time ago."""
    root = HERE.parent
    here = [str(root / "python"), str(root / "tests/jax/discover")]
    os.environ["PYTHONPATH"] = os.pathsep.join([*here, *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.setdefault("RONDO_LIBRARY", str(root / "build" / "librondo.so"))
    sys.path[:0] = here


if __name__ == "__main__":
    this_tree()
    main()
