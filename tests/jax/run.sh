#!/usr/bin/env bash
# The tests of this folder, then the corpus if there is one (RONDO_CORPUS, or ../shared/programs beside the
# clone).  PY is the Python to use.  The last line says "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 1
py="${PY:-python3}"
export JAX_PLATFORMS="${JAX_PLATFORMS:-rondo,cpu}" PYTHONPATH="$PWD/python:$PWD/tests/jax/discover${PYTHONPATH:+:$PYTHONPATH}"
log="$(mktemp)"
trap 'rm -f "$log"' EXIT

"$py" -m pytest -q -rs -p no:cacheprovider tests/jax 2>&1 | sed -E 's/^SKIPPED \[[0-9]+\] /SKIP /' | tee "$log"
line="$(tail -n 1 "$log")"
number() { grep -oE "[0-9]+ $1" <<<"$line" | grep -oE '[0-9]+' | head -n 1; }
passed="$(number passed)" failed="$(number failed)" errors="$(number 'errors?')"
passed="${passed:-0}" failed=$((${failed:-0} + ${errors:-0}))
[ "$passed" != 0 ] || [ "$failed" != 0 ] || failed=1

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
