#!/usr/bin/env python3
"""Rondo's collectives beside Open MPI and MPICH, between processes of this machine.

    bench/mpi.py                     2 processes, 8 B to 16 MB
    bench/mpi.py -n 4 --max 1048576  more processes
    bench/mpi.py --rounds 5 --fifo   under SCHED_FIFO, where others use the machine
    bench/mpi.py --before FOLDER     beside Rondo as it is built in another clone, instead of MPI
    bench/mpi.py --markdown          the table as Markdown

Runs take turns, a fresh job each.  With --before every row says, too, from where to where its ratio went from round to round: what
lies within is noise.  Every job also measures what an exchange of one cache line takes: the distance of two
cores may change within seconds, so only jobs of a round whose exchanges lie within a quarter of each other are compared.
A figure is the median over rounds; the ratio is the peer's time over Rondo's: above 1 Rondo is faster.  The peers' time for
put_signal is that of a message one way.  Debian has both: openmpi-bin libopenmpi-dev, mpich libmpich-dev.

all_reduce takes the result of the turn before as its operand as it is.  all_reduce_fresh and all_reduce_place are what is
left of that in a program: between two turns a pass over the data, counted in for all, reads the result and writes the
operand, into another buffer or where it is.  pass_fresh and pass_place are that pass alone, on the same buffers, which nobody
else touches; `net` is the ratio of what the two rows take less that, so all that the sum costs the pass is the sum's.  These three work in symmetric memory, all_reduce_any in memory that the
library has never seen.  Below the table: what the machine itself takes for the same, from the same runs.
"""

import argparse
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PEERS = {"openmpi": ("mpicc.openmpi", "mpirun.openmpi"), "mpich": ("mpicc.mpich", "mpirun.mpich")}


def parse(text):
    """Times in microseconds by (operation, bytes), and the exchange; what a line takes one way is an operation too."""
    rows, floor = {}, 0.0
    for line in text.splitlines():
        if m := re.match(r"# exchange .*median ([0-9.]+)", line):
            floor = float(m[1])
        elif m := re.match(r"# one cache line .*median .* ([0-9.]+) us", line):
            rows["way", 0] = float(m[1])
        elif line and not line.startswith("#") and not line.startswith("collective"):
            op, size, _, us, _ = line.split("\t")
            rows[op, int(size)] = float(us)
    return rows, floor


def limits(t, exchange):
    """What Rondo takes beside what the machine takes.  t: medians by (operation, bytes)."""
    if exchange and ("barrier", 0) in t:
        yield f"barrier: {t['barrier', 0] / exchange:.2f} of the exchange of a line"
    if exchange and ("all_reduce", 8) in t:
        yield f"all_reduce of 8 B: {t['all_reduce', 8] / exchange:.2f} of the exchange of a line"
    for op, size in t:
        if op == "put_signal" and size <= 64 and t.get(("way", 0)):
            yield f"put_signal of {size} B: {t[op, size] / t['way', 0]:.2f} of a line one way, {t['way', 0]:.3f} us"
        if op == "peer_read" and size >= 1 << 20:
            yield f"peer_read of {size} B: {t['plain_read', size] / t[op, size]:.2f} of the bandwidth of a plain read, {size / t['plain_read', size] / 1e3:.1f} GB/s"
    if ("idle", 0) in t:
        yield f"a PE that waits for a second: {t['idle', 0] / 1e4:.2f} % of a core"


def before_of(p, folder):
    """The program of another clone; p: the parser of the arguments."""
    tool = folder.resolve() / "build" / "rondo"
    if not tool.is_file():
        p.error(f"--before {folder}: it has no build/rondo (make)")
    return str(tool)


def beside(before, now):
    """The ratio of two lists of times, one of each round, and its least and its most in a round; above 1 the new one is faster."""
    each = [x / y for x, y in zip(before, now)]
    return f"{statistics.median(before) / statistics.median(now):.2f}", f"{min(each):.2f}-{max(each):.2f}"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-n", type=int, default=2, help="processes")
    p.add_argument("--min", type=int, default=8)
    p.add_argument("--max", type=int, default=16 << 20)
    p.add_argument("--ops", default="all_reduce,all_reduce_fresh,all_reduce_place,all_reduce_any,pass_fresh,pass_place,permute,barrier,put_signal,peer_read,plain_read,idle")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--fifo", action="store_true")
    p.add_argument("--before", metavar="FOLDER", type=pathlib.Path, help="a clone whose build/ has another rondo, the peer instead of MPI")
    p.add_argument("--markdown", action="store_true")
    p.add_argument("--rondo", default=str(HERE.parent / "build" / "rondo"))
    a = p.parse_args()
    if a.fifo and a.n > len(os.sched_getaffinity(0)):
        sys.exit("--fifo needs a core for each process: MPI's ranks that poll would never let the others run")
    ops = a.ops if a.n == 2 else ",".join(o for o in a.ops.split(",") if o not in ("put_signal", "peer_read", "plain_read"))
    old = a.before and before_of(p, a.before)
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_btl_vader_single_copy_mechanism="cma")
    first = ["chrt", "-f", "10"] if a.fifo and a.n <= len(os.sched_getaffinity(0)) else []
    with tempfile.TemporaryDirectory() as temp:
        sizes = ["--min", str(a.min), "--max", str(a.max), "--rounds", "7"]
        ours = {"rondo": a.rondo, "before": old} if old else {"rondo": a.rondo}
        jobs = {name: [tool, "launch", "-n", str(a.n), tool, "bench", "coll", "--op", ops, "--algorithm", "auto", *sizes] for name, tool in ours.items()}
        for name, (cc, run) in PEERS.items() if not old else ():
            if name == "mpich" and a.n > len(os.sched_getaffinity(0)):
                print("mpich is left out: its ranks do not yield, and here are more of them than cores", file=sys.stderr)
                continue
            if not shutil.which(cc) or not shutil.which(run):
                print(f"no {name} here ({cc}, {run})", file=sys.stderr)
                continue
            if subprocess.run([cc, "-O2", "-march=native", "-o", f"{temp}/{name}", str(HERE / "mpi.c")]).returncode:
                print(f"no {name} here: it comes with lib{name}-dev", file=sys.stderr)
                continue
            extra = ["--oversubscribe", "--bind-to", "none"] if name == "openmpi" else []
            if name == "openmpi" and a.n > len(os.sched_getaffinity(0)):
                extra += ["--mca", "mpi_yield_when_idle", "1"]
            jobs[name] = [run, *extra, "-np", str(a.n), f"{temp}/{name}", str(a.min), str(a.max), "7", ops]
        seen = {name: {} for name in jobs}
        kept, floors = 0, []
        for k in range(3 * a.rounds):
            got = {}
            for name, command in list(jobs.items())[::(-1) ** k]:
                if sys.stderr.isatty():
                    print(f"\rround {kept + 1} of {a.rounds}: {name:10}", end="", file=sys.stderr, flush=True)
                r = subprocess.run(first + command, env=env, capture_output=True, text=True, timeout=120)
                if r.returncode:
                    sys.exit(f"{name} failed: {r.stderr.strip()[-400:]}")
                got[name] = parse(r.stdout)
            near = [f for _, f in got.values()]
            if a.n == 2 and max(near) > 1.25 * min(near) and k < 3 * a.rounds - 1:
                continue
            floors.append(got["rondo"][1])
            for name, (rows, _) in got.items():
                for key, us in rows.items():
                    seen[name].setdefault(key, []).append(us)
            kept += 1
            if kept == a.rounds:
                break
        print(file=sys.stderr)
    names = list(jobs)
    head = ["operation", "bytes", *(f"{x} us" for x in names), *(f"{x}/rondo" for x in names[1:]), *(f"{x} net" for x in names[1:]), *(["of rounds"] if old else [])]
    bar = " | " if a.markdown else "\t"
    if statistics.median(floors):
        print(f"# exchange of one cache line: {statistics.median(floors):.3f} us; {kept} rounds")
    print(("| " if a.markdown else "") + bar.join(head) + (" |" if a.markdown else ""))
    if a.markdown:
        print("|" + " --- |" * len(head))
    for key in seen["rondo"]:
        if not all(key in seen[x] for x in names):
            continue
        t = [statistics.median(seen[x][key]) for x in names]
        alone = [statistics.median(seen[x].get((key[0].replace("all_reduce", "pass"), key[1]), [0])) for x in names]
        net = [x - y for x, y in zip(t, alone)] if all(alone) and key[0].startswith("all_reduce") else []
        cells = [key[0], str(key[1]), *(f"{x:.3f}" if x < 10 else f"{x:.1f}" for x in t), *(f"{x / t[0]:.2f}" for x in t[1:]),
                 *(f"{x / net[0]:.2f}" if net else "" for x in (net or t)[1:]), *([beside(seen["before"][key], seen["rondo"][key])[1]] if old else [])]
        print(("| " if a.markdown else "") + bar.join(cells) + (" |" if a.markdown else ""))
    for line in limits({k: statistics.median(v) for k, v in seen["rondo"].items()}, statistics.median(floors)):
        print(("* " if a.markdown else "# ") + line)


if __name__ == "__main__":
    main()
