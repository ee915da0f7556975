"""Runs the programs of a corpus through the plug-in and compares with its stored results.

    python corpus.py FOLDER [NAME ...]       NAME: a group (op attn spmd model) or group/program
    rondo launch -n 2 python corpus.py --job FOLDER [NAME ...]       those that want as many devices as the job has

FOLDER has its own check.py, which traces each program again, runs it and knows the tolerance.  expected.txt says
what may be further off ("coarse NAME SIZE reason"), and what has results that are nothing but noise.
"""
import contextlib
import os
import pathlib
import re
import sys
import time
import warnings

JOB = sys.argv[1] == "--job"
os.environ.setdefault("RONDO_DEVICES", "8")
HERE = pathlib.Path(__file__).parent
FOLDER, *NAMES = sys.argv[1 + JOB:]
sys.path[:0] = [FOLDER, str(HERE.parents[1] / "python"), str(HERE / "discover")]

import jax  # noqa: E402
import numpy as np  # noqa: E402
import check  # noqa: E402
from jax.experimental import multihost_utils  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402
from make import chosen  # noqa: E402

jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", "rondo,cpu"))


class Program:
    """A program of all devices of the job: arguments of each device are made where it is, all processes see all results."""

    def __init__(self, program):
        self.own, self.name, self.x64, self.f32 = program, program.name, program.x64, program.f32

    def wants(self):
        text = (pathlib.Path(FOLDER) / self.name).with_suffix(".mlir").read_text()
        parts = re.search(r"mhlo.num_partitions = (\d+)", text)
        return int(parts[1]) if parts else 1

    def build(self):
        fn, args = self.own.build()
        leaves, tree = jax.tree.flatten(args)
        lies = jax.tree.leaves(fn.lower(*jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype), args)).compile().input_shardings[0])
        if len(leaves) != len(lies):
            raise ValueError("arguments that the program does not use")
        lies = [s if isinstance(s, NamedSharding) else NamedSharding(Mesh(np.array(s._device_assignment), "d"), PartitionSpec()) for s in lies]
        leaves = [jax.make_array_from_callback(np.shape(x), s, lambda at, x=x: np.asarray(x)[at]) for x, s in zip(leaves, lies)]
        return lambda *args: jax.tree.map(lambda x: multihost_utils.process_allgather(x, tiled=True), fn(*args)), jax.tree.unflatten(tree, leaves)


def expected(kind):
    """The lines of a kind in expected.txt: program -> the word behind it."""
    lines = (line.split(None, 3) for line in (HERE / "expected.txt").read_text().splitlines())
    return {w[1]: w[2] for w in lines if len(w) > 2 and w[0] == kind}


@contextlib.contextmanager
def quiet(floor):
    """Results whose largest expected value is below floor have no error."""
    exact = check.error
    check.error = lambda got, want: 0 if np.abs(want).max(initial=0) < floor > np.abs(got).max(initial=0) else exact(got, want)
    yield
    check.error = exact


def main():
    warnings.filterwarnings("ignore", "Some donated buffers")
    coarse, noise, passed, failed = expected("coarse"), expected("noise"), 0, 0
    programs = chosen(NAMES)
    if JOB:
        jax.distributed.initialize()
        programs = [p for p in map(Program, programs) if p.wants() == jax.device_count()]
    for program in programs:
        begin = time.perf_counter()
        try:
            with jax.enable_x64(program.x64):
                with quiet(float(noise.get(program.name, 0))):
                    found, allowed = check.worst(program)
            allowed = max(allowed, float(coarse.get(program.name, 0)))
            good = found <= allowed
            text = f"error {found:.1e} allowed {allowed:.1e}"
        except ModuleNotFoundError as e:
            print(f"not run: {program.name} needs {e.name}", flush=True)
            continue
        except Exception as e:  # noqa: BLE001  (each program is reported by itself)
            text = f"{type(e).__name__}: {str(e).splitlines()[0][:200]}"
            good = False
        passed, failed = passed + good, failed + (not good)
        if not good or "VERBOSE" in os.environ:
            print(f"{'PASS' if good else 'FAIL'} {program.name} {text} ({time.perf_counter() - begin:.1f} s)", flush=True)
    if jax.process_index() == 0:
        print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
