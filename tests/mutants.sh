#!/usr/bin/env bash
# tests/mutants.sh [-n COUNT] [-s SEED] [NAME ...]: does a test notice when a line is wrong?
# Each tests/mutants/NAME.patch breaks one line; its first lines say what is wrong, and "test: T", which must fail: a unit test's name,
# golden/DIR/NAME, or jax/FILE.py.  It is applied to a copy of the tree, beside which the objects are kept from mutant to mutant
# (MUTANTS_AT names the folder).  A test that fails without any mutant has noticed nothing.
# -n: so many of them, drawn by the seed, which is printed.  The last line says "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
count='' seed=$((RANDOM * 32768 + RANDOM))
while getopts n:s: o; do
	case "$o" in n) count="$OPTARG" ;; s) seed="$OPTARG" ;; *) exit 2 ;; esac
done
shift $((OPTIND - 1))
names=("$@")
[ $# -gt 0 ] || while IFS= read -r f; do names+=("$(basename "$f" .patch)"); done < <(find tests/mutants -name '*.patch' | LC_ALL=C sort)
if [ -n "$count" ]; then
	echo "seed $seed"
	mapfile -t names < <(printf '%s\n' "${names[@]}" | awk -v s="$seed" 'BEGIN { srand(s) } { print rand(), $0 }' | LC_ALL=C sort | head -n "$count" | cut -d' ' -f2)
fi
at="${MUTANTS_AT:-}"
if [ -z "$at" ]; then
	at="$(mktemp -d)"
	trap 'rm -rf "$at"' EXIT
fi
mkdir -p "$at"
# With its time if it is not there, since what is built goes along; else what differs, as a change: a run that was ended leaves a mutant.
git ls-files -co --exclude-standard | while IFS= read -r f; do
	if [ ! -f "$at/$f" ]; then cp -p --parents -t "$at" "$f"; elif ! cmp -s "$f" "$at/$f"; then cp "$f" "$at/$f"; fi
done 2>/dev/null
for d in src tests; do                                                 # what is gone from the tree
	[ ! -d "$at/$d" ] || (cd "$at" && find "$d" -type f) | while IFS= read -r f; do [ -f "$f" ] || rm -f "$at/$f"; done
done
[ -d "$at/build" ] || [ ! -d build ] || cp -a build "$at/build"           # what is built already
py="$PWD/.venv/bin/python"
[ -x "$py" ] || py=python3
export RONDO_CACHE='' PYTHONDONTWRITEBYTECODE=1
passed=0 failed=0

# builds TEST, fails TEST SECONDS: in the copy
builds() {
	case "$1" in golden/* | *.py) make -s -C "$at" -j"$(nproc)" all ;; *) make -s -C "$at" -j"$(nproc)" all "build/unit/$1" ;; esac >"$at/log" 2>&1
}
fails() {
	case "$1" in
	golden/*) ! (cd "$at" && tests/golden.sh build/rondo "tests/$1.in") >"$at/log" 2>&1 ;;
	*.py) ! (cd "$at" && RONDO_LIBRARY="$PWD/build/librondo.so" JAX_PLATFORMS=rondo,cpu PYTHONPATH="$PWD/python:$PWD/tests/jax/discover" \
		timeout "$2" "$py" -m pytest -q -x -p no:cacheprovider "tests/$1") >"$at/log" 2>&1 ;;
	*) ! (cd "$at" && timeout "$2" "build/unit/$1") >"$at/log" 2>&1 ;;
	esac
}

declare -A took
# notices NAME: the test fails with it, though it builds and passes without.  One that then takes three times as long fails, too: many wait for ever.
notices() {
	local patch="$PWD/tests/mutants/$1.patch" test rc=0 since
	test="$(sed -n 's/^test: //p' "$patch")"
	if [ -z "${took[$test]:-}" ]; then
		since="$SECONDS"
		if ! builds "$test" || fails "$test" 900; then
			tail -n 5 "$at/log"
			echo "FAIL $1: $test fails without it"
			return 1
		fi
		took[$test]=$((SECONDS - since))
	fi
	if ! patch -s -p1 -d "$at" <"$patch"; then
		echo "FAIL $1: the patch does not fit"
		return 1
	fi
	if ! builds "$test"; then
		tail -n 5 "$at/log"
		echo "FAIL $1: it does not build"
		rc=1
	elif ! fails "$test" $((20 + 3 * took[$test])); then
		echo "FAIL $1: $test does not notice: $(head -n 1 "$patch")"
		rc=1
	fi
	patch -s -R -p1 -d "$at" <"$patch"
	return $rc
}

# All fit, also those that are not drawn.
for f in tests/mutants/*.patch; do
	patch -s --dry-run -p1 -d "$at" <"$f" >/dev/null || { echo "FAIL $f: the patch does not fit"; failed=$((failed + 1)); }
done
for name in "${names[@]}"; do
	if notices "$name"; then echo "ok $name"; passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
