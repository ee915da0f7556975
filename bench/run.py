"""Rondo beside XLA:CPU, both through JAX: the same programs, interleaved, a fresh process for each turn.

    bench/run.py                    every row, three rounds
    bench/run.py --quick            one round of the rows that show most
    bench/run.py --rows 'sort*'     some rows
    bench/run.py --markdown         the table as Markdown

A time is the median over rounds of the median within a process; the ratio is Rondo's time over the peer's: below 1
Rondo is faster.  Results are compared at fixed places.  Rows that Rondo loses are marked and counted, failures named.
The table, the machine and a plot go to bench/out/.
"""

import argparse
import datetime
import fnmatch
import json
import math
import os
import pathlib
import platform as host
import statistics
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).parent
OUT = HERE / "out"
PEER, OURS = "cpu", "rondo"


def environment(name, devices):
    env = dict(os.environ)
    env.pop("XLA_FLAGS", None)
    env["TF_CPP_MIN_LOG_LEVEL"] = "3"
    env["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    if name == PEER:
        return env | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    env.setdefault("RONDO_LIBRARY", str(HERE.parent / "build" / "librondo.so"))
    return env | {"JAX_PLATFORMS": "rondo,cpu", "RONDO_DEVICES": str(devices), "RONDO_CACHE": ""}


def turn(name, rows, verbose):
    """Run rows on a platform in a fresh process; (records, samples) by row.  A crash ends only the row it hit."""
    records, samples, left = {}, {}, list(rows)
    while left:
        with tempfile.TemporaryDirectory() as temp:
            path = pathlib.Path(temp) / "samples.npz"
            command = [sys.executable, str(HERE / "worker.py"), name, str(path), *(r.name for r in left)]
            error = None if verbose else subprocess.PIPE
            process = subprocess.Popen(command, env=environment(name, left[0].devices), stdout=subprocess.PIPE, stderr=error, text=True)
            try:
                text, noise = process.communicate(timeout=sum(r.timeout for r in left))
                why = f"exit {process.returncode}"
            except subprocess.TimeoutExpired:
                process.kill()
                text, noise = process.communicate()
                why = "hangs"
            for line in text.splitlines():
                if line.startswith('{"row"'):
                    record = json.loads(line)
                    records[record["row"]] = record
            if path.exists():
                with np.load(path) as found:
                    samples |= {k: found[k] for k in found.files}
        rest = [r for r in left if r.name not in records]
        if rest:  # the process died in the first of them
            lines = [x for x in (noise or "").splitlines() if x.strip()]
            records[rest[0].name] = {"failed": f"{why}: {lines[-1][:120] if lines else ''}"}
            rest = rest[1:]
        left = rest
    return records, samples


def differs(a, b):
    """Largest difference, in units of (element + rms)."""
    if a is None or b is None or a.shape != b.shape:
        return math.nan if a is None or b is None else math.inf
    if not a.size:
        return 0.0
    scale = np.abs(b) + np.sqrt(np.nanmean(b * b)) + 1e-30
    return float(np.nanmax(np.abs(a - b) / scale))


def groups(rows):
    """Rows that share a process: those of equal device count that are not alone."""
    shared = {}
    for r in rows:
        if r.alone:
            yield [r]
        else:
            shared.setdefault(r.devices, []).append(r)
    for group in shared.values():
        for i in range(0, len(group), 8):
            yield group[i : i + 8]


def middle(records, key):
    values = [r[key] for r in records if key in r]
    return statistics.median(values) if values else math.nan


def machine():
    name = next((x.split(":", 1)[1].strip() for x in open("/proc/cpuinfo") if x.startswith("model name")), host.processor())
    memory = next(int(x.split()[1]) for x in open("/proc/meminfo") if x.startswith("MemTotal")) / 2**20
    import jaxlib

    return f"{name}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB; jaxlib {jaxlib.__version__}; {datetime.date.today()}"


def number(x):
    return "-" if math.isnan(x) else f"{x:.2g}" if x < 0.1 else f"{x:,.2f}" if x < 100 else f"{x:,.0f}"


def plot(table, path):
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return
    rows = [(name, r) for name, *_, r in table if math.isfinite(r) and r > 0]
    if not rows:
        return
    rows.sort(key=lambda x: -x[1])
    fig, ax = plt.subplots(figsize=(8, 0.24 * len(rows) + 1.2))
    colors = ["#c44e52" if r > 1 else "#4c72b0" for _, r in rows]
    ax.barh([n for n, _ in rows], [r for _, r in rows], color=colors, left=0)
    ax.axvline(1, color="black", lw=0.8)
    ax.set_xscale("log")
    ax.set_xlabel("time of Rondo / time of XLA:CPU (log; left of 1: Rondo is faster)")
    ax.tick_params(labelsize=7)
    fig.tight_layout()
    fig.savefig(path, dpi=130)


def progress(done, total, what):
    if sys.stderr.isatty():
        full = int(30 * done / total)
        end = "\n" if done == total else ""
        print(f"\r[{'#' * full}{' ' * (30 - full)}] {100 * done // total:3d} % {what[:40]:40}", end=end, file=sys.stderr, flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rows", nargs="*", default=["*"], help="patterns of row names")
    p.add_argument("--quick", action="store_true", help="one round of the rows that show most")
    p.add_argument("--rounds", type=int, default=0)
    p.add_argument("--markdown", action="store_true")
    p.add_argument("--verbose", action="store_true", help="show what the processes write to stderr")
    p.add_argument("--out", type=pathlib.Path, default=OUT)
    a = p.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    import cases

    chosen = [r for r in cases.ROWS if (r.quick or not a.quick) and any(fnmatch.fnmatch(r.name, x) for x in a.rows)]
    if not chosen:
        sys.exit(f"no row fits {' '.join(a.rows)}")
    rounds = a.rounds or (1 if a.quick else 3)
    batches = list(groups(chosen))
    got = {(s, r.name): [] for s in (PEER, OURS) for r in chosen}
    errors = {}
    step, steps = 0, 2 * rounds * len(batches)
    for k in range(rounds):
        for batch in batches:
            samples = {}
            for side in (PEER, OURS) if k % 2 == 0 else (OURS, PEER):
                progress(step, steps, f"{side}: {batch[0].name}")
                records, samples[side] = turn(side, batch, a.verbose)
                for r in batch:
                    got[side, r.name].append(records.get(r.name, {"failed": "no answer"}))
                step += 1
            for r in batch:
                e = differs(samples[OURS].get(r.name), samples[PEER].get(r.name))
                if not math.isnan(e):
                    errors[r.name] = max(errors.get(r.name, 0), e)
    progress(steps, steps, "done")

    about = machine()
    table, lost, failed, wrong = [], 0, [], []
    for r in chosen:
        peer, ours = (middle(got[s, r.name], "us") for s in (PEER, OURS))
        table.append((r.name, peer, ours, middle(got[PEER, r.name], "mb"), middle(got[OURS, r.name], "mb"), errors.get(r.name, math.nan), ours / peer))
        lost += ours / peer > 1
        for s in PEER, OURS:
            failed += [f"{s}: {r.name}: {x['failed']}" for x in got[s, r.name][-1:] if "failed" in x]
        if errors.get(r.name, 0) > r.tol:
            wrong.append(f"{r.name}: differs by {errors[r.name]:.1e}, {r.tol:.1e} allowed")
    print(f"# {about}")
    if a.markdown:
        print("| | XLA:CPU us | Rondo us | Rondo / XLA:CPU | memory MB |\n| --- | ---: | ---: | ---: | ---: |")
    else:
        print(f"{'row':40} {'XLA:CPU us':>12} {'Rondo us':>12} {'ratio':>8}  {'MB':>13} {'error':>8}")
    for name, peer, ours, mb0, mb1, error, ratio in table:
        memory = "" if math.isnan(mb0) and math.isnan(mb1) else f"{number(mb0)} / {number(mb1)}"
        if a.markdown:
            print(f"| {name} | {number(peer)} | {number(ours)} | {'**' if ratio > 1 else ''}{number(ratio)}{'**' if ratio > 1 else ''} | {memory} |")
        else:
            print(f"{name:40} {number(peer):>12} {number(ours):>12} {number(ratio):>8}{' <' if ratio > 1 else '  '}{memory:>13} {'' if math.isnan(error) else f'{error:8.0e}'}")
    ratios = [r for *_, r in table if math.isfinite(r)]
    if ratios:
        print(f"\ngeometric mean {math.exp(statistics.mean(map(math.log, ratios))):.2f} over {len(ratios)} rows; {lost} lost (marked)")
    for line in failed + wrong:
        print(f"! {line}")
    a.out.mkdir(parents=True, exist_ok=True)
    with open(a.out / "bench.tsv", "w") as f:
        f.write(f"# {about}; {rounds} rounds\nrow\tpeer_us\trondo_us\tratio\tpeer_mb\trondo_mb\terror\n")
        for name, peer, ours, mb0, mb1, error, ratio in table:
            f.write(f"{name}\t{peer:.5g}\t{ours:.5g}\t{ratio:.4g}\t{mb0:.4g}\t{mb1:.4g}\t{error:.2g}\n")
    plot(table, a.out / "bench.png")
    print(f"written: {a.out / 'bench.tsv'}, {a.out / 'bench.png'}")
    sys.exit(any(x.startswith(OURS) for x in failed) or bool(wrong))


if __name__ == "__main__":
    main()
