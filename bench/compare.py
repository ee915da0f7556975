#!/usr/bin/env python3
"""Rondo beside XLA:CPU: the same cases on both, in turns, each turn in a fresh process.

    python compare.py [--rounds 3] [--out FILE.tsv] [PATTERN ...]

Prints a table with the ratio of times (below 1: Rondo is faster) and the machine.  A row is the median of
the rounds' medians.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def turn(platform, patterns):
    env = {**os.environ, "JAX_PLATFORMS": platform, "RONDO_CACHE": ""}
    paths = [str(HERE.parent / "python"), str(HERE.parent / "tests/jax/discover"), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    run = subprocess.run([sys.executable, HERE / "cases.py", *patterns], env=env, capture_output=True, text=True)
    rows = dict(line.split("\t", 1) for line in run.stdout.splitlines() if "\t" in line)
    if run.returncode:
        rows["the process"] = "failed: " + (run.stderr.strip().splitlines() or ["no message"])[-1][:120]
    return rows


def machine():
    info = pathlib.Path("/proc/cpuinfo").read_text()
    name = next((line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name")), "unknown")
    return f"{name}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}"


def text(seconds):
    for unit, scale in ("s", 1), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9):
        if seconds >= scale or unit == "ns":
            return f"{seconds / scale:.3g} {unit}"


def median(rounds, name):
    """Median of the rounds, or why there is none."""
    values = [r.get(name, "missing") for r in rounds]
    bad = [v for v in values if not v[0].isdigit()]
    return (None, bad[0]) if bad else (statistics.median(map(float, values)), "")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("patterns", nargs="*")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--out")
    args = p.parse_args()
    results = {"cpu": [], "rondo,cpu": []}
    for i in range(args.rounds):
        for platform, rounds in results.items():
            print(f"round {i + 1} of {args.rounds}: {platform.split(',')[0]}", end="\r", file=sys.stderr, flush=True)
            rounds.append(turn(platform, args.patterns))
    names = list(dict.fromkeys(n for rounds in results.values() for r in rounds for n in r))
    lines = [f"{machine()}", f"{'case':36}{'XLA:CPU':>12}{'Rondo':>12}{'ratio':>9}"]
    for name in names:
        (a, _), (b, why) = (median(r, name) for r in results.values())
        ratio = f"{b / a:.3g}" if a and b else "-"
        lines.append(f"{name:36}{text(a) if a else '-':>12}{text(b) if b else '-':>12}{ratio:>9}  {why}".rstrip())
    print("\n".join(lines))
    if args.out:
        pathlib.Path(args.out).write_text("".join(
            f"{n}\t{median(results['cpu'], n)[0]}\t{median(results['rondo,cpu'], n)[0]}\n" for n in names))


if __name__ == "__main__":
    main()
