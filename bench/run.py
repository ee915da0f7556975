"""Rondo beside XLA:CPU, both through JAX: the same programs, interleaved, a fresh process for each turn.

    bench/run.py                    every row, three rounds; prints the table
    bench/run.py --readme           and puts it into README.md
    bench/run.py --quick            one round of the rows that show most
    bench/run.py --rows 'sort*'     some rows
    bench/run.py --before FOLDER    beside Rondo as it is built in another clone, instead of XLA:CPU

XLA:CPU is that of the JAX that runs this, and, if `scripts/newest true` has made build/newest, that of the newest JAX, too: the
peer of a row is the faster of the two.  A time is the median over rounds of the median within a process; the ratio is Rondo's
time over the peer's: below 1 Rondo is faster.  Results are compared at fixed places, with those of the same Python.  Rows that Rondo loses or that miss what is wanted of them are
marked and counted, failures named.  Of two wanted ratios the second is to the first
XLA:CPU alone.  The table, the machine and a plot go to bench/out/ as well.
"""

import argparse
import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Side:
    label: str
    platform: str
    clone: pathlib.Path = HERE.parent
    python: pathlib.Path = pathlib.Path(sys.executable)


OURS = Side("Rondo", "rondo")
NEWEST = HERE.parent / "build" / "newest" / "venv" / "bin" / "python"


def xla_cpus():
    """Those that Rondo is compared with, the newest last."""
    def side(python):
        ask = "import jaxlib.version; print(jaxlib.version.__version__)"
        return Side("XLA:CPU " + subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip(), "cpu", python=python)

    return [side(p) for p in (pathlib.Path(sys.executable), NEWEST) if p.exists()]


def environment(side, devices):
    env = dict(os.environ)
    env.pop("XLA_FLAGS", None)
    env["TF_CPP_MIN_LOG_LEVEL"] = "3"
    env["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    if side.platform == "cpu":
        return env | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    env.setdefault("RONDO_LOG", "2")
    if side != OURS:
        env |= {"PYTHONPATH": f"{side.clone / 'python'}:{side.clone / 'tests' / 'jax' / 'discover'}"}
        env.pop("RONDO_LIBRARY", None)
    env.setdefault("RONDO_LIBRARY", str(side.clone / "build" / "librondo.so"))
    return env | {"JAX_PLATFORMS": "rondo,cpu", "RONDO_DEVICES": str(devices), "RONDO_CACHE": ""}


def turn(side, rows, verbose):
    """Run rows on a side in a fresh process; (records, samples) by row.  A crash ends only the row it hit."""
    records, samples, left = {}, {}, list(rows)
    while left:
        with tempfile.TemporaryDirectory() as temp:
            path = pathlib.Path(temp) / "samples.npz"
            command = [str(side.python), str(HERE / "worker.py"), side.platform, str(path), *(r.name for r in left)]
            error = None if verbose else subprocess.PIPE
            process = subprocess.Popen(command, env=environment(side, left[0].devices), stdout=subprocess.PIPE, stderr=error, text=True)
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
    """Processor, cores, what a core was measured to do at most, memory, versions."""
    name = next((x.split(":", 1)[1].strip() for x in open("/proc/cpuinfo") if x.startswith("model name")), host.processor())
    memory = next(int(x.split()[1]) for x in open("/proc/meminfo") if x.startswith("MemTotal")) / 2**20
    tool = HERE.parent / "build" / "rondo"
    head = subprocess.run([tool, "bench", "kern", "--only", "fill", "--seconds", "0"], capture_output=True, text=True).stdout if tool.exists() else ""
    peaks = [x.split("1 core; ", 1)[1] for x in head.splitlines() if "1 core; " in x]
    import jaxlib

    return "; ".join([f"{name}, {len(os.sched_getaffinity(0))} cores", *(f"a core: {x}" for x in peaks), f"{memory:.0f} GiB", f"jaxlib {jaxlib.__version__}",
                      str(datetime.date.today())])


def duration(us):
    """Microseconds, readable."""
    if math.isnan(us):
        return "fails"
    for unit, scale in ("s", 1e6), ("ms", 1e3), ("us", 1), ("ns", 1e-3):
        if us >= scale:
            break
    return f"{us / scale:.3g} {unit}" if us / scale < 100 else f"{us / scale:.0f} {unit}"


def number(x):
    return "-" if math.isnan(x) else f"{x:.1g}" if x < 0.01 else f"{x:.2f}" if x < 10 else f"{x:.0f}"


def share(least, ours):
    """Of the machine's limit, in percent; more than all of it says that the limit was not well measured."""
    return "" if math.isnan(least) or math.isnan(ours) else f"{100 * least / ours:.2g} %" if least < 0.995 * ours else "100 %"


@dataclasses.dataclass
class Line:
    """What is known of a row: microseconds and MB of each peer and of Rondo, the largest difference, the least time."""
    row: object  # cases.Row
    peers: list
    ours: float
    peers_mb: list
    ours_mb: float
    error: float
    least: float

    def __post_init__(self):
        known = [x for x in self.peers if not math.isnan(x)]
        self.ratio = self.ours / min(known) if known else math.nan
        self.missed = self.ours > self.row.most if self.row.most else self.ratio > self.row.floor > 0 or self.ours / self.peers[0] > self.row.own > 0

    def memory(self):
        mb = [*self.peers_mb, self.ours_mb]
        return "" if all(map(math.isnan, mb)) else " / ".join("-" if math.isnan(x) else f"{x:.0f}" for x in mb)


def markdown(table, about, rounds, load, peers):
    """The table as README.md shows it."""
    labels = [p.label for p in peers]
    beside = " and ".join(labels) if len(labels) < 2 else "the faster of " + " and ".join(labels)
    lines = [("", *labels, "Rondo", "ratio", "wanted", "share of the limit", "memory, MB")]
    for x in table:
        shown = number(x.ratio)
        wanted = f"<= {duration(x.row.most)}" if x.row.most else f"<= {x.row.floor:g}" + (f", {x.row.own:g}" if x.row.own else "") if x.row.floor else ""
        lines.append((x.row.name, *map(duration, x.peers), duration(x.ours), f"**{shown}**" if x.missed or x.ratio > 1 else shown, wanted,
                      share(x.least, x.ours), x.memory()))
    wide = [max(len(x[i]) for x in lines) for i in range(len(lines[0]))]
    fit = [[c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(x, wide))] for x in lines]
    text = ["| " + " | ".join(x) + " |" for x in fit]
    text.insert(1, "| " + " | ".join("-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(wide)) + " |")
    ratios = [x.ratio for x in table if math.isfinite(x.ratio)]
    lost = sum(x > 1 for x in ratios)
    missed = sum(x.missed for x in table)
    mean = math.exp(statistics.mean(map(math.log, ratios))) if ratios else math.nan
    foot = (f"Ratio: Rondo's time over that of {beside}. Geometric mean {mean:.2f} over {len(ratios)} rows; {lost} slower, {missed} above what is "
            f"wanted (both bold; of two wanted ratios the second is to the first XLA:CPU alone). Share of the limit: the least time in which this machine could do what the row must do (operations, bytes moved "
            f"in memory or between cores, as measured on all its cores in the same run), over Rondo's time; empty where no limit means something. "
            f"Memory: peak beyond the inputs, {' / '.join(labels)} / Rondo.")
    return "\n".join([f"{about}; medians of {rounds} round{'s' * (rounds > 1)}, {load}.", "", *text, "", foot])


def into_readme(text):
    path = HERE.parent / "README.md"
    page = path.read_text()
    begin, end = "<!-- bench -->", "<!-- /bench -->"
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    path.write_text(f"{head}{begin}\n{text}\n{end}{tail}")


def plot(table, path, peers):
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return
    rows = [(x.row.name, x.ratio) for x in table if math.isfinite(x.ratio) and x.ratio > 0]
    if not rows:
        return
    rows.sort(key=lambda x: -x[1])
    fig, ax = plt.subplots(figsize=(8, 0.24 * len(rows) + 1.2))
    colors = ["#c44e52" if r > 1 else "#4c72b0" for _, r in rows]
    ax.barh([n for n, _ in rows], [r for _, r in rows], color=colors, left=0)
    ax.axvline(1, color="black", lw=0.8)
    ax.set_xscale("log")
    ax.set_xlabel(f"time of Rondo / time of {' or '.join(p.label for p in peers)} (log; left of 1: Rondo is faster)")
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
    p.add_argument("--first", action="store_true", help="timed loops go before what else runs here (needs root)")
    p.add_argument("--readme", action="store_true", help="put the table into README.md")
    p.add_argument("--before", metavar="FOLDER", type=pathlib.Path, help="a clone whose build/ has another librondo.so, the peer instead of XLA:CPU")
    p.add_argument("--verbose", action="store_true", help="show what the processes write to stderr")
    p.add_argument("--out", type=pathlib.Path, default=OUT)
    a = p.parse_args()
    if a.before and not (a.before / "build" / "librondo.so").is_file():
        p.error(f"--before {a.before}: it has no build/librondo.so (make)")
    if a.before and a.readme:
        p.error("README.md shows Rondo beside XLA:CPU: --before does not go with --readme")
    peers = [Side("before", "rondo", a.before.resolve())] if a.before else xla_cpus()
    sides = [*peers, OURS]
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["BENCH_FIRST"] = "1" if a.first else ""
    import cases
    import limits

    most = limits.Limits(HERE.parent / "build" / "rondo")
    chosen = [r for r in cases.ROWS if (r.quick or not a.quick) and any(fnmatch.fnmatch(r.name, x) for x in a.rows)]
    if a.before:  # the floors are of the ratio to XLA:CPU
        chosen = [dataclasses.replace(r, floor=0, own=0, most=0) for r in chosen]
    if not chosen:
        sys.exit(f"no row fits {' '.join(a.rows)}")
    rounds = a.rounds or (1 if a.quick else 3)
    batches = list(groups(chosen))
    got = {(s, r.name): [] for s in sides for r in chosen}
    errors = {}
    load = [os.getloadavg()[0]]
    step, steps = 0, len(sides) * rounds * len(batches)
    for k in range(rounds):
        for batch in batches:
            samples = {}
            most.measure()
            for side in sides[k % len(sides):] + sides[:k % len(sides)]:
                progress(step, steps, f"{side.label}: {batch[0].name}")
                records, samples[side] = turn(side, batch, a.verbose)
                for r in batch:
                    got[side, r.name].append(records.get(r.name, {"failed": "no answer"}))
                step += 1
            for r in batch:
                for peer in (p for p in peers if p.python == OURS.python):      # another numpy draws other numbers
                    e = differs(samples[OURS].get(r.name), samples[peer].get(r.name))
                    if not math.isnan(e):
                        errors[r.name] = max(errors.get(r.name, 0), e)
    progress(steps, steps, "done")

    load.append(os.getloadavg()[0])
    about = "; ".join(x for x in (machine(), most.between()) if x)
    table, failed, wrong = [], [], []
    for r in chosen:
        us, mb = ([middle(got[s, r.name], key) for s in sides] for key in ("us", "mb"))
        table.append(Line(r, us[:-1], us[-1], mb[:-1], mb[-1], errors.get(r.name, math.nan), most.least(r.work)))
        for s in sides:
            failed += [f"{s.label}: {r.name}: {x['failed']}" for x in got[s, r.name][-1:] if "failed" in x]
        if errors.get(r.name, 0) > r.tol:
            wrong.append(f"{r.name}: differs by {errors[r.name]:.1e}, {r.tol:.1e} allowed")
    text = markdown(table, about, rounds, f"load {load[0]:.1f} before, {load[1]:.1f} after" + (", timed loops before other work" if a.first else ""), peers)
    print(text)
    for line in failed + wrong:
        print(f"! {line}")
    if a.readme:
        into_readme(text)
    a.out.mkdir(parents=True, exist_ok=True)
    with open(a.out / "bench.tsv", "w") as f:
        columns = ["row", *(f"{s.label} {unit}" for unit in ("us", "MB") for s in sides), "ratio", "error", "least us"]
        f.write(f"# {about}; {rounds} rounds\n" + "\t".join(columns) + "\n")
        for x in table:
            values = [*x.peers, x.ours, *x.peers_mb, x.ours_mb, x.ratio, x.error, x.least]
            f.write("\t".join([x.row.name, *(f"{v:.5g}" for v in values)]) + "\n")
    plot(table, a.out / "bench.png", peers)
    sys.exit(any(x.startswith(OURS.label) for x in failed) or bool(wrong))


if __name__ == "__main__":
    main()
