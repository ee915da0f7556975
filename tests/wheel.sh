#!/usr/bin/env bash
# The wheel in a venv that has nothing: brings JAX, the command and all it needs, is found by JAX, computes; its tag is true.
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

RONDO_URL=https://example.org/rondo.git "$py" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$dir" . || fail "no wheel"
wheel="$(echo "$dir"/rondo-*.whl)"
[ "$(stat -c %s "$wheel")" -le 30000000 ] || fail "$wheel is too large"
promised="$(sed -nE 's/.*glibc 2[.]([0-9]+).*/\1/p' docs/limits.md | head -n 1)"
"$py" -m venv "$dir/venv" || fail "no venv"
"$dir/venv/bin/pip" install -q --disable-pip-version-check "$wheel" || fail "the wheel does not install"
cd "$dir" || exit 1
site="$(echo "$dir"/venv/lib/python3*/site-packages)"
unset RONDO_LIBRARY PYTHONPATH JAX_PLATFORMS
export RONDO_CACHE="$dir/cache" RONDO_DEVICES=2

# Any Python 3, and systems as old as the tag says: of glibc nothing younger, of other libraries what all have.
glibc="$(sed -nE 's/.*-py3-none-manylinux_2_([0-9]+)_x86_64\.whl/\1/p' <<<"$wheel")"
[ -n "$glibc" ] || fail "tag of $wheel"
[ "$glibc" -le "$promised" ] || fail "the wheel needs glibc 2.$glibc, docs/limits.md promises 2.$promised"
files=("$site"/rondo/*.so "$site/rondo/rondo")
[ ${#files[@]} = 3 ] || fail "other libraries than its own: ${files[*]}"
for f in "${files[@]}"; do
	while read -r minor; do
		[ "$minor" -le "$glibc" ] || fail "$f needs glibc 2.$minor, the tag says 2.$glibc"
	done < <(objdump -T "$f" | sed -nE 's/.*GLIBC_2\.([0-9]+).*/\1/p' | sort -un)
	out="$(objdump -p "$f" | awk '$1 == "NEEDED" { print $2 }' | grep -vxE 'lib(c|m|dl|pthread|rt)\.so\.[0-9]|libgcc_s\.so\.1|ld-linux-x86-64\.so\.2')"
	[ -z "$out" ] || fail "$f needs $out"
done
for f in licenses/LICENSE licenses/LICENSE.third-party; do
	[ -s "$(echo "$site"/rondo-*.dist-info/"$f")" ] || fail "no $f"
done
for field in 'License-Expression: Apache-2.0' 'Requires-Python: >=3.11' 'Requires-Dist: jax<' 'Description-Content-Type: text/markdown' \
             'Project-URL: Repository, https://example.org/rondo$' '.*](https://example.org/rondo/blob/main/docs/limits.md)'; do
	grep -q "^$field" "$site"/rondo-*.dist-info/METADATA || fail "no $field"
done
out="$(grep -oE '\]\([^)]*\)' "$site"/rondo-*.dist-info/METADATA | grep -v '](https\?://')" && fail "links that lead nowhere: $out"

# The command, its manual, its completions.
[ "$(venv/bin/rondo --version)" = "rondo $(venv/bin/python -c 'import rondo; print(rondo.__version__)')" ] || fail "rondo --version"
out="$(venv/bin/rondo doctor 2>&1)" || fail "$out"
grep -q 'through JAX .*a sum over 2 devices' <<<"$out" || fail "$out"
for f in man/man1/rondo.1 man/man1/rondo-launch.1 bash-completion/completions/rondo zsh/site-functions/_rondo; do
	[ -s "venv/share/$f" ] || fail "no $f"
done
out="$(JAX_PLATFORMS=cpu venv/bin/rondo doctor 2>&1)" && fail "content without the platform: $out"
grep -q -- '-> JAX_PLATFORMS=rondo,cpu' <<<"$out" || fail "$out"

out="$(venv/bin/python -c '
import jax, jax.numpy as jnp
x = jnp.arange(64.0).reshape(8, 8) + 8 * jnp.eye(8)
y = jax.jit(lambda x: jnp.tanh(x @ x).sum() + jnp.linalg.det(x) * 0)(x)
print(jax.devices()[0].platform, len(jax.devices()), float(y))' 2>&1)" || fail "$out"
[ "$out" = "rondo 2 64.0" ] || fail "unexpected: $out"
out="$(venv/bin/python -c 'import sys; print("rondo.early" in sys.modules, "jax" in sys.modules)' 2>&1)"
[ "$out" = "True False" ] || fail "what must be in place before jax.distributed is not: $out"
printf '1 passed, 0 failed\n'
