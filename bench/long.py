"""Attention over a sequence that lies split over devices: its time and its memory over the length, as curves.

    bench/long.py                          the curves into bench/out/long.svg, the numbers beside them
    bench/long.py --lengths 2048 8192 --devices 1 4
    bench/long.py --only memory            nothing runs: what a compiled program says of itself
    bench/long.py --svg docs/long-context.svg

Plain causal attention of bf16, heads of 64, keys shared by two queries, forward and gradient; nothing says how devices
communicate.  Each (platform, devices) has a process of its own for all lengths; time is the least of some calls, rounds
interleaved.  XLA:CPU makes scores of S x S: it is left out where they alone pass --gb.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
HEADS, SHARED, SIZE = 2, 2, 64


def drawn(shape, split, seed):
    """A global array of bf16: each block by the seed and where it begins along the sequence, whoever has it."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def of(index):
        n = [len(range(*i.indices(d))) for i, d in zip(index, shape, strict=True)]
        return np.random.default_rng((seed, index[1].start or 0)).standard_normal(n, np.float32).astype(jnp.bfloat16)

    return jax.make_array_from_callback(shape, split, of)


def inside(devices, lengths, calls, most):
    """One process: a JSON line for each length."""
    import time

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()[:devices]), ("s",))
    split = NamedSharding(mesh, P(None, "s"))

    def attention(q, k, v):
        score = jnp.einsum("btkgd,bskd->bkgts", q, k, preferred_element_type=jnp.float32) * SIZE**-0.5
        time = jnp.arange(q.shape[1])
        score = jnp.where(time[:, None] >= time, score, -jnp.inf)
        return jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(score).astype(q.dtype), v)

    def both(q, k, v, do):
        o, back = jax.vjp(attention, q, k, v)
        return o, back(do)

    for n in lengths:
        rows, keys = (1, n, HEADS, SHARED, SIZE), (1, n, HEADS, SIZE)
        shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16, sharding=split) for s in (rows, keys, keys, rows)]
        f = jax.jit(both).lower(*shapes).compile()
        line = {"length": n, "bytes": f.memory_analysis().temp_size_in_bytes}
        if calls and n <= most:
            args = [drawn(s.shape, split, i) for i, s in enumerate(shapes)]
            jax.block_until_ready(f(*args))
            best = 1e30
            for _ in range(calls):
                begin = time.perf_counter()
                jax.block_until_ready(f(*args))
                best = min(best, time.perf_counter() - begin)
            line["seconds"] = best
        print(json.dumps(line), flush=True)


def measure(platform, devices, lengths, calls, most):
    env = dict(os.environ, JAX_PLATFORMS=f"{platform},cpu" if platform != "cpu" else "cpu", TF_CPP_MIN_LOG_LEVEL="3", RONDO_CACHE="", RONDO_DEVICES=str(devices),
               XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}")
    if platform != "cpu":
        env["PYTHONPATH"] = f"{HERE.parent / 'python'}:{HERE.parent / 'tests' / 'jax' / 'discover'}"
        env.setdefault("RONDO_LIBRARY", str(HERE.parent / "build" / "librondo.so"))
    command = [sys.executable, __file__, "--inside", str(devices), "--calls", str(calls), "--most", str(most), "--lengths", *map(str, lengths)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        print(f"{platform}, {devices} devices: {next((x for x in reversed(done.stderr.splitlines()) if 'rror' in x), '?')[:200]}", file=sys.stderr)
    return [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]


def draw(curves, path, about):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    wants = [w for w in ("bytes", "seconds") if any(w in p for c in curves.values() for p in c.values())]
    figure, axes = plt.subplots(1, len(wants), figsize=(5.2 * len(wants), 4), squeeze=False)
    for ax, what in zip(axes[0], wants, strict=True):
        for (platform, n), points in curves.items():
            at = sorted(x for x in points if what in points[x])
            scale = 2**20 if what == "bytes" else 1
            ax.plot(at, [points[x][what] / scale for x in at], "o-" if platform == "rondo" else "s--", ms=3.5, lw=1.2,
                    label=f"{'Rondo' if platform == 'rondo' else 'XLA:CPU'}, {n} device{'s' * (n > 1)}")
        ax.set(xlabel="tokens", ylabel="temporary memory of a device, MB" if what == "bytes" else "forward and gradient, s", xscale="log", yscale="log")
        ax.xaxis.set_major_formatter(lambda x, _: f"{x / 1024:.0f}K")
        ax.set_xticks(sorted({x for c in curves.values() for x in c}), minor=False)
        ax.minorticks_off()
        ax.grid(alpha=0.3)
        ax.legend(fontsize=7)
    figure.suptitle(about, fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lengths", type=int, nargs="*", default=[2048, 4096, 8192, 16384, 32768])
    p.add_argument("--devices", type=int, nargs="*", default=[1, 2, 4])
    p.add_argument("--only", choices=["memory"])
    p.add_argument("--calls", type=int, default=3)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--most", type=int, default=1 << 40, help="the longest that runs; of longer ones memory is shown")
    p.add_argument("--gb", type=float, default=2, help="the largest scores of XLA:CPU")
    p.add_argument("--svg", type=pathlib.Path, default=HERE / "out" / "long.svg")
    p.add_argument("--inside", type=int, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.inside:
        return inside(a.inside, a.lengths, a.calls, a.most)
    calls, curves = 0 if a.only else a.calls, {}
    sides = [(platform, n) for platform in ("rondo", "cpu") for n in a.devices]
    rounds = 1 if a.only else a.rounds
    for r in range(rounds):
        for k, (platform, n) in enumerate(sides if r % 2 == 0 else sides[::-1]):
            if sys.stderr.isatty():
                print(f"\r[{r * len(sides) + k}/{rounds * len(sides)}] {platform}, {n}\033[K", end="", file=sys.stderr)
            fit = [x for x in a.lengths if platform == "rondo" or 4 * HEADS * SHARED * x * x <= a.gb * 2**30]
            for line in measure(platform, n, fit, calls, a.most):
                at = curves.setdefault((platform, n), {}).setdefault(line["length"], line)
                if "seconds" in line:
                    at["seconds"] = min(at["seconds"], line["seconds"])
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    name = next((x.split(":", 1)[1].strip() for x in open("/proc/cpuinfo") if x.startswith("model name")), "")
    about = f"causal attention, bf16, {HEADS * SHARED} heads of {SIZE}, keys for {SHARED}; {name}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}"
    print(about)
    print("| tokens | " + " | ".join(f"{'Rondo' if s == 'rondo' else 'XLA:CPU'}, {n}" for s, n in sides) + " |\n| ---: |" + " ---: |" * len(sides))
    for x in a.lengths:
        cells = [curves.get(s, {}).get(x, {}) for s in sides]
        print(f"| {x // 1024}K | " + " | ".join(f"{c['bytes'] / 2**20:.1f} MB" + (f", {c['seconds'] * 1e3:.0f} ms" if "seconds" in c else "") if c else "-" for c in cells) + " |")
    draw(curves, a.svg, about)
    print(a.svg)


if __name__ == "__main__":
    main()
