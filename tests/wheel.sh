#!/usr/bin/env bash
# The wheel in a venv that has only JAX: carries what it links, is found by JAX, computes.
# PY is a Python with setuptools.  The last line says "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
py="${PY:-python3}"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT

fail() {
	echo "FAIL $*"
	printf '0 passed, 1 failed\n'
	exit 1
}

"$py" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$dir" . || fail "no wheel"
"$py" -m venv "$dir/venv" || fail "no venv"
"$dir/venv/bin/python" -m pip install -q --disable-pip-version-check -r <(grep -E '^(jax|jaxlib)==' requirements.txt) "$dir"/rondo-*.whl ||
	fail "the wheel does not install"
cd "$dir" || exit 1
site="$(echo "$dir"/venv/lib/python3*/site-packages/rondo)"
for lib in "$site"/*.so*; do
	! ldd "$lib" | grep -E 'not found' || fail "$lib needs what is not there"
	! ldd "$lib" | grep -E '/(libLLVM|libdnnl|libhwloc)[^ ]* ' | grep -v "$site" || fail "$lib takes a library from the system"
done
out="$(env -u RONDO_LIBRARY -u PYTHONPATH JAX_PLATFORMS=rondo,cpu RONDO_DEVICES=2 RONDO_CACHE="$dir/cache" "$dir/venv/bin/python" -c '
import jax, jax.numpy as jnp
x = jnp.arange(64.0).reshape(8, 8) + 8 * jnp.eye(8)
y = jax.jit(lambda x: jnp.tanh(x @ x).sum() + jnp.linalg.det(x) * 0)(x)
print(jax.devices()[0].platform, len(jax.devices()), float(y))' 2>&1)" || fail "$out"
[ "$out" = "rondo 2 64.0" ] || fail "unexpected: $out"
out="$(env -u RONDO_LIBRARY -u PYTHONPATH "$dir/venv/bin/python" -c 'import sys; print("rondo.early" in sys.modules, "jax" in sys.modules)' 2>&1)"
[ "$out" = "True False" ] || fail "what must be in place before jax.distributed is not: $out"
printf '1 passed, 0 failed\n'
