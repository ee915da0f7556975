"""Runs rows in this process, one JSON line each.  Started by run.py: worker.py PLATFORM SAMPLES.npz NAME..."""

import contextlib
import json
import os
import pathlib
import statistics
import sys
import time

import numpy as np

if sys.argv[1] != "cpu":
    try:
        import rondo
    except ImportError:
        sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python"))
        import rondo
    rondo.initialize()

import cases  # noqa: E402
import jax  # noqa: E402

BUDGET = 0.4  # seconds a row is repeated for


def memory(field):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(field)) / 1024


def reset_peak():
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")


@contextlib.contextmanager
def first():
    """With BENCH_FIRST set: every thread goes before what else runs on this machine, where that is allowed."""

    def policy(kind, priority):
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):
                os.sched_setscheduler(int(task), kind, os.sched_param(priority))

    if os.environ.get("BENCH_FIRST"):
        policy(os.SCHED_FIFO, 1)
    try:
        yield
    finally:
        if os.environ.get("BENCH_FIRST"):
            policy(os.SCHED_OTHER, 0)


def sampled(tree):
    """Up to 4096 elements of every array, at fixed places, as float64."""
    found = []
    for x in jax.tree.leaves(tree):
        x = np.asarray(x).reshape(-1)
        if x.size > 4096:
            x = x[np.random.default_rng(x.size).integers(0, x.size, 4096)]
        found.append(x.astype(np.float64))
    return np.concatenate(found) if found else np.zeros(0)


def run(row):
    case = row.make()
    before = memory("VmRSS")
    reset_peak()
    if case.seconds:
        with first():
            spent, out, *_ = case.seconds()
        return {"us": spent * 1e6}, sampled(out)
    args, times = case.args, []
    out = jax.block_until_ready(case.call(*args))  # compiles
    sample = sampled(case.sample(out) if case.sample else out)
    if case.keep:
        args = case.keep(args, out)
    with first():
        begin = time.perf_counter()
        while len(times) < 3 or time.perf_counter() - begin < BUDGET:
            t = time.perf_counter()
            out = jax.block_until_ready(case.call(*args))
            times.append(time.perf_counter() - t)
            if case.keep:
                args = case.keep(args, out)
            if time.perf_counter() - begin > 20:
                break
    record = {"us": statistics.median(times) / case.units * 1e6}
    if row.alone:
        record["mb"] = memory("VmHWM") - before
    return record, sample


def main():
    platform, path, *names = sys.argv[1:]
    got = jax.devices()[0].platform
    assert got == platform, f"JAX chose '{got}' instead of '{platform}'"
    rows = {r.name: r for r in cases.ROWS}
    samples = {}
    for name in names:
        try:
            record, samples[name] = run(rows[name])
        except Exception as e:
            record = {"failed": f"{type(e).__name__}: {e}".splitlines()[0][:160]}
        print(json.dumps({"row": name} | record), flush=True)
        np.savez(path, **samples)


if __name__ == "__main__":
    main()
