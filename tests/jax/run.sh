#!/usr/bin/env bash
# tests/jax/run.sh [FILES]: the tests of this folder, then the corpus if there is one (RONDO_CORPUS, or ../shared/programs beside
# the clone); or these files only.  PY is the Python to use.  The last line says "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 1
py="${PY:-python3}"
export JAX_PLATFORMS="${JAX_PLATFORMS:-rondo,cpu}" PYTHONPATH="$PWD/python:$PWD/tests/jax/discover${PYTHONPATH:+:$PYTHONPATH}"
export OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}"      # numpy's threads wait with a core each
log="$(mktemp)" counts="$(mktemp)"
trap 'rm -f "$log" "$counts"' EXIT

# A file's tests one after the other, one more file at once than there are cores, since they wait for processes at times: large ones first, before them the two that take longest, whatever their
# size.  What its last line counts goes to counts.
tests() {
	local out line rc p n e
	out="$("$py" -m pytest -q -rsfE --durations=6 --durations-min=4 -p no:cacheprovider "$1" 2>&1)"
	rc=$?
	out="$(sed -E 's/^SKIPPED \[[0-9]+\] /SKIP /' <<<"$out")"
	line="${out##*$'\n'}"
	printf '%s\n' "${out%"$line"}${1##*/}: $line"
	number() { grep -oE "[0-9]+ $1" <<<"$line" | grep -oE '[0-9]+' | head -n 1; }
	p="$(number passed)" n="$(number failed)" e="$(number 'errors?')"
	n=$((${n:-0} + ${e:-0}))
	[ "$rc" = 0 ] || [ "$n" != 0 ] || n=1
	echo "${p:-0} $n" >>"$counts"
}
declare -A seen
while IFS= read -r f; do
	[ -z "${seen[$f]:-}" ] || continue
	seen[$f]=1
	while [ "$(jobs -rp | wc -l)" -gt "$(nproc)" ]; do wait -n; done
	tests "$f" &
done < <(if [ $# -gt 0 ]; then ls -S "$@"; else ls tests/jax/test_{processes,random}.py && ls -S tests/jax/test_*.py; fi)
wait
read -r passed failed < <(awk '{ p += $1; n += $2 } END { print p + 0, n + 0 }' "$counts")
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
if [ $# -gt 0 ]; then
	:
elif [ -d "$corpus" ]; then
	add "$py" tests/jax/corpus.py "$corpus"
	add "$py" tests/jax/peak.py "$corpus"
	add env RONDO_DEVICES=4 build/rondo launch -n 2 "$py" tests/jax/corpus.py --job "$corpus"
else
	echo "SKIP corpus: there is none at $corpus (RONDO_CORPUS names another place)"
fi
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
