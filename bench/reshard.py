#!/usr/bin/env python3
"""A sharded array to another sharding: how much longer it takes than a plain copy.

    bench/reshard.py                      24 random pairs of shardings, 8 devices, 64 MB
    bench/reshard.py --pairs 100 --seed 7
    bench/reshard.py --mb 256 --rank 2    larger arrays, of two dimensions
    bench/reshard.py --only "4x2 4096x4096 P('x', 'y') P('y', 'x')"

The program is the identity, its argument in one sharding and its result in another, on meshes of 8, 4x2 and 2x2x2 devices of one process.
The limit is memcpy on all cores, of as many bytes as all results have, from buffers of the arguments' size to buffers of the results',
all touched before: whatever does not travel is copied all the same, for the argument stays.  Rondo, the limit and XLA:CPU take turns in one
run; a figure is the median of its turns.  Columns: bytes that come into a device, at most and as the program says (`rondo explain
--sharded` shows it), of which each device's share of the result is made; times; Rondo's time over the limit's.  Each result is
compared with the array.
"""

import argparse
import concurrent.futures
import ctypes
import math
import os
import pathlib
import statistics
import sys
import time

MESHES = {"8": (8,), "4x2": (4, 2), "2x2x2": (2, 2, 2)}
AXES = "xyz"


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pairs", type=int, default=24)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--mb", type=int, default=64)
    p.add_argument("--rank", type=int, default=0, help="dimensions of the array; 0: 1 to 4, drawn")
    p.add_argument("--turns", type=int, default=7)
    p.add_argument("--mesh", choices=sorted(MESHES), help="this mesh alone")
    p.add_argument("--only", action="append", default=[], help="a pair, as it is printed")
    p.add_argument("--no-xla", action="store_true", help="without XLA:CPU")
    return p.parse_args()


A = arguments()
os.environ.setdefault("RONDO_DEVICES", "8")
os.environ.setdefault("JAX_PLATFORMS", "rondo,cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
try:
    import rondo
except ImportError:
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python"))
    import rondo
rondo.initialize()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)


def dims(rank, mb):
    """A shape of mb megabytes of f32 whose dimensions are equal, as far as they are powers of two."""
    bits = int(math.log2(mb << 18))
    return tuple(1 << (bits // rank + (d < bits % rank)) for d in range(rank))


def draw(rng, axes, rank):
    """Each axis cuts a dimension, one more often than none."""
    spec = [[] for _ in range(rank)]
    for a in rng.permutation(list(axes)):
        d = int(rng.integers(0, rank + 1)) if rng.random() < 0.5 else int(rng.integers(0, rank))
        if d < rank:
            spec[d].append(str(a))
    return P(*(None if not s else s[0] if len(s) == 1 else tuple(s) for s in spec))


def moved(shape, a, b):
    """Most bytes that a device lacks."""
    def boxes(s):
        return {d: [i.indices(n)[:2] for i, n in zip(at, shape)] for d, at in s.devices_indices_map(shape).items()}
    have, want, most = boxes(a), boxes(b), 0
    for d, w in want.items():
        size = math.prod(hi - lo for lo, hi in w)
        both = math.prod(max(0, min(h[1], k[1]) - max(h[0], k[0])) for h, k in zip(have[d], w))
        most = max(most, 4 * (size - both))
    return most


class Copy:
    """memcpy by all cores, of `all` bytes, from buffers of `src` bytes to ones of `dst` bytes."""

    def __init__(self):
        self.cores = len(os.sched_getaffinity(0))
        self.pool = concurrent.futures.ThreadPoolExecutor(self.cores)
        self.memcpy = ctypes.CDLL(None).memcpy
        self.memcpy.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t

    def prepare(self, src, dst):
        self.src, self.dst = np.ones(src // 4, np.float32), np.ones(dst // 4, np.float32)

    def part(self, k):
        piece = 1 << 20
        for o in range(k * piece, self.dst.nbytes, self.cores * piece):
            n = min(piece, self.dst.nbytes - o, self.src.nbytes)
            self.memcpy(self.dst.ctypes.data + o, self.src.ctypes.data + o % (self.src.nbytes - n + 1), n)

    def __call__(self):
        list(self.pool.map(self.part, range(self.cores)))


def clock(f):
    t = time.perf_counter()
    r = f()
    return time.perf_counter() - t, r


def measure(mesh, shape, frm, to, copy):
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    calls, found = {}, {}
    for name in ["rondo"] if A.no_xla else ["rondo", "cpu"]:
        m = Mesh(np.array(jax.devices(name)[:8]).reshape(MESHES[mesh]), tuple(AXES[: len(MESHES[mesh])]))
        a, b = NamedSharding(m, frm), NamedSharding(m, to)
        arg = jax.device_put(x, a)
        f = jax.jit(lambda v: v, in_shardings=a, out_shardings=b)
        y = f(arg)
        found[name] = all((np.asarray(s.data) == x[s.index]).all() for s in y.addressable_shards)
        copied = sum(s.data.nbytes for s in y.addressable_shards)
        calls[name] = lambda f=f, arg=arg: jax.block_until_ready(f(arg))
        del y
    del x
    copy.prepare(sum(s.data.nbytes for s in arg.addressable_shards), copied)
    calls["limit"] = copy
    times = {name: [] for name in calls}
    for turn in range(A.turns + 2):
        for name, call in calls.items():
            spent, out = clock(call)
            del out
            if turn >= 2:
                times[name].append(spent)
    return moved(shape, a, b), copied, found, {k: statistics.median(v) for k, v in times.items()}


def text(mesh, shape, frm, to):
    spec = lambda s: "P(" + ", ".join("None" if e is None else repr(e) for e in s) + ")"  # noqa: E731
    return f"{mesh} {'x'.join(map(str, shape))} {spec(frm)} {spec(to)}"


def pairs():
    rng = np.random.default_rng(A.seed)
    n = 0
    for one in A.only:
        mesh, shape, specs = one.split(" ", 2)
        cut = specs.index(" P(")
        yield mesh, tuple(map(int, shape.split("x"))), eval(specs[:cut], {"P": P}), eval(specs[cut:], {"P": P})
    while n < A.pairs and not A.only:
        mesh = A.mesh or str(rng.choice(list(MESHES)))
        shape = dims(A.rank or int(rng.integers(1, 5)), A.mb)
        frm, to = (draw(rng, AXES[: len(MESHES[mesh])], len(shape)) for _ in range(2))
        m = Mesh(np.array(jax.devices("rondo")[:8]).reshape(MESHES[mesh]), tuple(AXES[: len(MESHES[mesh])]))
        if moved(shape, NamedSharding(m, frm), NamedSharding(m, to)):
            n += 1
            yield mesh, shape, frm, to


def main():
    copy, ratios, beside, wrong = Copy(), [], [], 0
    total = len(A.only) or A.pairs
    print(f"{'mesh, array, from, to':74} {'in, MB':>7} {'all, MB':>8} {'ms':>8} {'limit':>8} {'ratio':>6} {'XLA:CPU':>8}")
    for k, (mesh, shape, frm, to) in enumerate(pairs()):
        name = text(mesh, shape, frm, to)
        if sys.stderr.isatty():
            print(f"\r{k + 1} of {total}: {name:100}", end="\r", file=sys.stderr, flush=True)
        need, copied, found, t = measure(mesh, shape, frm, to, copy)
        ratios.append((t["rondo"] / t["limit"], name))
        if "cpu" in t:
            beside.append(t["rondo"] / t["cpu"])
        bad = [p for p, ok in found.items() if not ok]
        wrong += len(bad)
        print(f"{name:74} {need / 2**20:7.1f} {copied / 2**20:8.1f} {t['rondo'] * 1e3:8.2f} {t['limit'] * 1e3:8.2f} {ratios[-1][0]:6.2f} "
              f"{t['cpu'] * 1e3 if 'cpu' in t else math.nan:8.2f}" + (f"  WRONG: {', '.join(bad)}" if bad else ""), flush=True)
    mean = lambda r: math.exp(statistics.fmean(map(math.log, r)))  # noqa: E731
    worst = max(ratios)
    print(f"geometric mean {mean([r for r, _ in ratios]):.2f} of the limit, worst {worst[0]:.2f}: {worst[1]}")
    if beside:
        print(f"geometric mean {mean(beside):.2f} of XLA:CPU's time, worst {max(beside):.2f}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
