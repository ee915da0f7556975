#!/usr/bin/env bash
# JAX's own tests against the plug-in of this tree.
#     JAX_SRC=<JAX's sources at the installed version> tests/jax/suite.sh [core|multi|rest|processes] [options]
# RONDO_JAXSUITE is the folder of the runner (../shared/jaxsuite beside the clone if not given).  Ends with
# the tests that fail and are not named in expected.txt.
set -u
cd "$(dirname "$0")/../.." || exit 1
export PYTHON="${PY:-python3}" RONDO_LIBRARY="${RONDO_LIBRARY:-$PWD/build/librondo.so}"
export PYTHONPATH="$PWD/python:$PWD/tests/jax/discover${PYTHONPATH:+:$PYTHONPATH}"
suite="${RONDO_JAXSUITE:-../shared/jaxsuite}"
[ -d "${JAX_SRC:-}" ] || { echo "JAX_SRC must name a folder with JAX's sources"; exit 1; }
[ -x "$suite/run.sh" ] || { echo "no runner at $suite (set RONDO_JAXSUITE)"; exit 1; }
out="$(mktemp -d)"
if [ "${1:-}" = processes ]; then     # four processes of two devices; the runner sets PYTHONPATH itself
	shift
	cat >"$out/python" <<-SH
		#!/bin/sh
		export PYTHONPATH="\$PYTHONPATH:$PYTHONPATH"
		exec "$PYTHON" "\$@"
	SH
	chmod +x "$out/python"
	env PYTHON="$out/python" "$PYTHON" -P "$suite/procs.py" rondo 4 --local 2 "$@" --out "$out"
else
	"$suite/run.sh" rondo "$@" --out "$out"
fi
"$PYTHON" - "$out/results.json" tests/jax/expected.txt <<'PY'
import json
import sys
known = {w[1] for w in (line.split(None, 2) for line in open(sys.argv[2])) if len(w) > 1 and w[0] == "jax"}
files = json.load(open(sys.argv[1]))["files"]
bad = [(i if "::" in i else f"{path}::{i.replace('.', '::')}", t) for path, f in files.items() for i, t in f["tests"].items()
       if t[0] not in ("passed", "skipped")]
new = [(i, t) for i, t in bad if i.replace(" ", "") not in known]
for i, t in new:
    print("NEW", t[0], i, (t[2] if len(t) > 2 else "")[:150])
print(f"{len(bad)} failed, {len(bad) - len(new)} of them named in expected.txt; all results in {sys.argv[1]}")
PY
