#!/usr/bin/env python3
"""Is the road that attention takes over devices the fastest of all?  Drawn shapes, each on the road that the compiler chooses and on all that it did not.

    bench/choice.py                          60 shapes over nine places: devices of one process, processes, two and four hosts
    bench/choice.py --seed 7 --shapes 8 --places 1x4 2x2@1gbit
    bench/choice.py --only "2x2 forward causal bfloat16 4096 4 2 64"
    bench/choice.py --table default          by the table of no machine, not by one that is measured for the place

A place is processes x devices, behind @ the speed of the cables if each process is a host of its own (network namespaces, root).
Where there are hosts, the machine table is measured between them first (rondo bench coll --write), as its user would.
A shape is forward or gradient, rows, heads, heads of keys, the size of one, a mask, a type.  All roads of a place live at once and take turns,
their order turns, too; a figure is the median over rounds.  The last lines say on how many shapes the choice was within 5 % of the best, and the worst.
"""

import argparse
import contextlib
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import types

import net
import roads

HERE = pathlib.Path(__file__).resolve().parent
PLACES = ["1x2", "1x4", "2x1", "2x2", "4x1", "2x1@10gbit", "2x1@1gbit", "4x1@10gbit", "4x1@1gbit"]
OTHERS = ["in order", "heads", "gather", "sent"]


def drawn(r, devices, far):
    """A shape that takes less than some seconds: the bytes that hosts exchange are bounded, too."""
    while True:
        what, mask, kind = r.choice(["forward", "gradient"]), r.choice(roads.MASKS), r.choice(["bfloat16", "bfloat16", "float32"])
        length, heads, size = r.choice([1024, 2048, 4096, 6144, 8192, 16384]), r.choice([2, 4, 8, 16]), r.choice([64, 128])
        keys = r.choice([k for k in (1, 2, 4, 8, 16) if heads % k == 0])
        work = length**2 * heads * size * (3 if what == "gradient" else 1) * (4 if kind == "float32" else 1)
        if length // devices >= 128 and work < 6e11 and (not far or length * keys * size < 8e6):
            return roads.shape_of(what, length, heads, keys, size, mask, kind)


def measured(hosts, n, folder, env):
    """The machine table of these hosts: what `rondo bench coll --write` leaves in its cache folder."""
    tool = str(HERE.parent / "build" / "rondo")
    jobs = [subprocess.Popen(["ip", "netns", "exec", hosts.name[i], tool, "bench", "coll", "--write", "--rounds", "5", "--max", str(4 << 20)],
                             env=dict(env, RONDO_PROCESS=str(i), RONDO_PROCESSES=str(n), RONDO_RENDEZVOUS=f"tcp://{net.ADDRESS[0]}:20999", RONDO_TOKEN="choice", RONDO_CACHE=folder),
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for i in range(n)]
    said = [j.communicate(timeout=600)[1] for j in jobs]
    return next((s.strip().splitlines()[-1] for s, j in zip(said, jobs) if j.returncode or "not" in s), "")


def place(name, shapes, a, folder):
    """Prints and returns how much longer than the best the choice took, for each shape."""
    count, _, link = name.partition("@")
    processes, devices = map(int, count.split("x"))
    at = types.SimpleNamespace(processes=processes, devices=devices, hosts=processes if link else 1)
    worse = []
    with net.Hosts(processes) if link else contextlib.nullcontext() as hosts:
        if link:
            hosts.limit(link)
            if a.table is None:
                said = measured(hosts, processes, folder, os.environ)
                print(f"# {name}: {said or 'table measured'}", flush=True)
        os.environ.update({"RONDO_TABLE": a.table} if a.table else {"RONDO_CACHE": folder} if link else {})
        jobs = {k: roads.Job(k, at, folder, hosts) for k in ["symmetric", *OTHERS]}
        for shape in shapes:
            times = {k: [] for k in jobs}
            for j in jobs.values():
                j.sample(shape)
            for turn in range(a.rounds):
                order = [*jobs][turn % len(jobs):] + [*jobs][:turn % len(jobs)]
                for k in order:
                    times[k].append(jobs[k].sample(shape)[0])
            middle = {k: 1e3 * statistics.median(t) for k, t in times.items()}
            best = min(middle, key=middle.get)
            worse.append((middle["symmetric"] / middle[best], f"{name} {shape}: {best}"))
            print(f"{name:12} {shape:42}" + "".join(f"{middle[k]:10.2f}" for k in jobs) + f"   {worse[-1][0]:.2f}  {best}", flush=True)
        for j in jobs.values():
            j.end()
    for k in ("RONDO_TABLE", "RONDO_CACHE"):
        os.environ.pop(k, None)
    return worse


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--places", nargs="+", default=PLACES)
    p.add_argument("--shapes", type=int, default=60, help="shared by the places")
    p.add_argument("--only", action="append", default=[], help="a place and its shape, as they are printed")
    p.add_argument("--seed", type=int, default=None, help="a fresh one, if not given")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--table", help="a machine table (RONDO_TABLE) for all places: default, or a file")
    a = p.parse_args()
    if os.geteuid() and any("@" in x for x in a.places):
        sys.exit("network namespaces need root: leave out the places with @")
    seed = random.randrange(1 << 30) if a.seed is None else a.seed
    r = random.Random(seed)
    print(f"# seed {seed}, {a.shapes} shapes, median ms of {a.rounds} interleaved rounds, load {os.getloadavg()[0]:.1f}\n"
          f"{'place':12} {'shape':42}" + "".join(f"{k:>10}" for k in ["chosen", *OTHERS]) + "   chosen / best", flush=True)
    worse = []
    if a.only:
        a.places = list(dict.fromkeys(x.split()[0] for x in a.only))
    for i, name in enumerate(a.places):
        count, _, link = name.partition("@")
        processes, devices = map(int, count.split("x"))
        shapes = [" ".join(x.split()[1:]) for x in a.only if x.split()[0] == name]
        if not a.only:
            shapes = [drawn(r, processes * devices, link) for _ in range(a.shapes * i // len(a.places), a.shapes * (i + 1) // len(a.places))]
        with tempfile.TemporaryDirectory() as folder:
            worse += place(name, shapes, a, folder)
    near = sum(w <= 1.05 for w, _ in worse)
    print(f"\nwithin 5 % of the best on {near} of {len(worse)}; the worst:")
    for w, what in sorted(worse, reverse=True)[:5]:
        print(f"{w:6.2f}  {what}")


if __name__ == "__main__":
    roads.this_tree()
    main()
