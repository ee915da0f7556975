"""Random sharded programs under RONDO_REPRO=8, on 1, 2, 4 and 8 devices: the same bits, or the program is printed.

    python tests/jax/random_repro.py [--seed S] [--count 100] [--mode along]

The programs are those of random_programs.py; the last axis of their mesh is as long as there are devices for it, which of every other program come in any
order.  A child for each number of devices runs all of them.
"""
import argparse
import hashlib
import os
import random
import subprocess
import sys
import warnings

import random_programs
from random_programs import draw

PARTS, NUMBERS = 8, (1, 2, 4, 8)


def on(c, n):
    """c with a mesh of n devices, or None."""
    dims, names, _ = c.mesh
    last, left = dims[-1] * n // PARTS, dims[-1] * n % PARTS
    order = random.Random(c.seed).sample(range(n), n) if c.seed % 2 else list(range(n))
    c.mesh = ((*dims[:-1], last), names, order) if last and not left else None
    return c if c.mesh else None


def child(a):
    import jax
    import numpy as np
    jax.config.update("jax_num_cpu_devices", a.child)
    warnings.simplefilter("ignore")
    for seed in range(a.seed, a.seed + a.count):
        c = on(draw(seed, PARTS, "sharded", a.mode), a.child)
        if not c:
            continue
        with jax.enable_x64(c.x64):
            try:
                out = random_programs.run_on(jax.devices(), c, c.values())
                said = " ".join(hashlib.sha256(np.asarray(x).tobytes()).hexdigest()[:12] for x, good in zip(out, c.good, strict=True) if good[2] < np.inf)
            except Exception as e:
                said = f"refused {type(e).__name__}: {str(e)[:200]!r}"
        print(seed, said, flush=True)
        if seed % 50 == 49:
            jax.clear_caches()


def answers(a, n):
    env = {**os.environ, "RONDO_REPRO": str(PARTS), "RONDO_CACHE": "", "RONDO_CHECK": "1"}
    r = subprocess.run([sys.executable, __file__, "--child", str(n), "--seed", str(a.seed), "--count", str(a.count), *(["--mode", a.mode] if a.mode else [])],
                       env=env, stdout=subprocess.PIPE, text=True, check=True)
    return {int(line.split()[0]): line.split(maxsplit=1)[1] for line in r.stdout.splitlines()}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seed", type=int, default=None, help="the first program's; a fresh one, if not given")
    p.add_argument("--count", type=int, default=100)
    p.add_argument("--mode", default=None, help="kind of program (random_ops.py: Draw.GROUPS)")
    p.add_argument("--child", type=int, default=0, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.child:
        return child(a)
    a.seed = int.from_bytes(os.urandom(4), "little") if a.seed is None else a.seed
    print(f"seed={a.seed}", flush=True)
    said = {n: answers(a, n) for n in NUMBERS}
    ran = refused = wrong = 0
    for seed, want in said[PARTS].items():
        ran += 1
        refused += want.startswith("refused")
        other = {n: said[n][seed] for n in NUMBERS if said[n].get(seed, want) != want and not (want.startswith("refused") and said[n][seed].startswith("refused"))
                 and "which RONDO_REPRO does not know" not in said[n][seed]}
        if other:
            wrong += 1
            print(f"seed={seed}: {want} on {PARTS} devices, {other}\n{draw(seed, PARTS, 'sharded', a.mode).text()}", flush=True)
    print(f"{ran} programs, {refused} refused, {wrong} with other bits")
    return wrong > 0 or refused > ran / 2


if __name__ == "__main__":
    sys.exit(main())
