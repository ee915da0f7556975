"""Runs the programs of a corpus through the plug-in and compares with its stored results.

    python corpus.py FOLDER [NAME ...]       NAME: a group (op attn spmd model) or group/program

FOLDER has its own check.py, which traces each program again, runs it and knows the tolerance.  Programs
named in expected.txt as "corpus NAME reason" must fail with an UNIMPLEMENTED error, not otherwise.
"""
import os
import pathlib
import sys
import time
import warnings

os.environ.setdefault("RONDO_DEVICES", "8")
HERE = pathlib.Path(__file__).parent
sys.path[:0] = [sys.argv[1], str(HERE.parents[1] / "python"), str(HERE / "discover")]

import jax  # noqa: E402
import check  # noqa: E402
from make import chosen  # noqa: E402

jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", "rondo,cpu"))


# XLA rounds every addition of bf16 here (the corpus is made without excess precision), and so do we; where one
# rounding of a long chain falls the other way, AdamW's first step makes a large part of an element of it.
NOISY = {"model/gpt": 4e-2}


def expected():
    lines = (HERE / "expected.txt").read_text().splitlines()
    return {w[1] for w in (line.split(None, 2) for line in lines) if len(w) > 1 and w[0] == "corpus"}


def main():
    warnings.filterwarnings("ignore", "Some donated buffers")
    refused, passed, failed = expected(), 0, 0
    for program in chosen(sys.argv[2:]):
        begin = time.perf_counter()
        try:
            with jax.enable_x64(program.x64):
                found, allowed = check.worst(program)
                allowed = max(allowed, NOISY.get(program.name, 0))
            good = found <= allowed and program.name not in refused
            text = f"error {found:.1e} allowed {allowed:.1e}"
        except ModuleNotFoundError as e:
            print(f"not run: {program.name} needs {e.name}", flush=True)
            continue
        except Exception as e:  # noqa: BLE001  (each program is reported by itself)
            text = f"{type(e).__name__}: {str(e).splitlines()[0][:200]}"
            good = program.name in refused and "UNIMPLEMENTED" in text
        passed, failed = passed + good, failed + (not good)
        if not good or "VERBOSE" in os.environ:
            print(f"{'PASS' if good else 'FAIL'} {program.name} {text} ({time.perf_counter() - begin:.1f} s)", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
