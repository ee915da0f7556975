"""Runs the programs of a corpus through the plug-in and compares with its stored results.

    python corpus.py FOLDER [NAME ...]       NAME: a group (op attn spmd model) or group/program

FOLDER has its own check.py, which traces each program again, runs it and knows the tolerance.  expected.txt says
what may be further off ("coarse NAME SIZE reason"), and what has results that are nothing but noise.
"""
import contextlib
import os
import pathlib
import sys
import time
import warnings

os.environ.setdefault("RONDO_DEVICES", "8")
HERE = pathlib.Path(__file__).parent
sys.path[:0] = [sys.argv[1], str(HERE.parents[1] / "python"), str(HERE / "discover")]

import jax  # noqa: E402
import numpy as np  # noqa: E402
import check  # noqa: E402
from make import chosen  # noqa: E402

jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", "rondo,cpu"))


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
    for program in chosen(sys.argv[2:]):
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
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
