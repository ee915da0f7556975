#!/usr/bin/env bash
# The tests of this folder, then the corpus if there is one (RONDO_CORPUS, or ../shared/programs beside the
# clone).  PY is the Python to use.  The last line says "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 1
py="${PY:-python3}"
export JAX_PLATFORMS="${JAX_PLATFORMS:-rondo,cpu}" PYTHONPATH="$PWD/python:$PWD/tests/jax/discover${PYTHONPATH:+:$PYTHONPATH}"
log="$(mktemp)" logs="$(mktemp -d)"
trap 'rm -rf "$log" "$logs"' EXIT

# A file's tests one after the other, as many files at once as there are cores, large ones first.
tests() {
	local to="$logs/${1##*/}"
	"$py" -m pytest -q -rs -p no:cacheprovider "$1" 2>&1 | sed -E 's/^SKIPPED \[[0-9]+\] /SKIP /' >"$to"
	sed "\$s|^|${1##*/}: |" "$to"
}
passed=0 failed=0
while IFS= read -r f; do
	while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
	tests "$f" &
done < <(ls -S tests/jax/test_*.py)
wait
for f in "$logs"/*; do
	line="$(tail -n 1 "$f")"
	number() { grep -oE "[0-9]+ $1" <<<"$line" | grep -oE '[0-9]+' | head -n 1; }
	p="$(number passed)" n="$(number failed)" errors="$(number 'errors?')"
	n=$((${n:-0} + ${errors:-0}))
	[[ "${p:-0}$n" != 00 || $line == *skipped* ]] || n=1
	passed=$((passed + ${p:-0})) failed=$((failed + n))
done

corpus="${RONDO_CORPUS:-../shared/programs}"
# The last line of a command that runs the corpus is added up.
add() {
	local rc
	"$@" 2>&1 | tee "$log"
	rc="${PIPESTATUS[0]}"
	line="$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)"
	[ -n "$line" ] || line="0 passed, 1 failed"
	passed=$((passed + ${line%% *}))
	line="${line##*passed, }"
	line="${line%% *}"
	[ "$rc" = 0 ] || [ "$line" != 0 ] || line=1
	failed=$((failed + line))
}
if [ -d "$corpus" ]; then
	add "$py" tests/jax/corpus.py "$corpus"
	add env RONDO_DEVICES=4 build/rondo launch -n 2 "$py" tests/jax/corpus.py --job "$corpus"
else
	echo "SKIP corpus: there is none at $corpus (RONDO_CORPUS names another place)"
fi
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
