#!/usr/bin/env bash
# tests/mutants.sh [-n COUNT] [-s SEED] [NAME ...]: does a test notice when a line is wrong?
# Each tests/mutants/NAME.patch breaks one line; its first lines say what is wrong, and "test: NAME", the unit test that must fail.  It is
# applied to a copy of the tree, beside which the objects are kept from mutant to mutant (MUTANTS_AT names the folder).
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
git ls-files -co --exclude-standard -z -- Makefile src tests/unit | xargs -0 cp -p --parents -t "$at"
[ -d "$at/build" ] || [ ! -d build ] || cp -a build "$at/build"           # what is built already
passed=0 failed=0

# notices NAME: the test fails with it, though it builds and passes without.
notices() {
	local patch="$PWD/tests/mutants/$1.patch" test rc=0
	test="$(sed -n 's/^test: //p' "$patch")"
	if ! patch -s -p1 -d "$at" <"$patch"; then
		echo "FAIL $1: the patch does not fit"
		return 1
	fi
	if ! make -s -C "$at" -j"$(nproc)" "build/unit/$test" >"$at/log" 2>&1; then
		tail -n 5 "$at/log"
		echo "FAIL $1: it does not build"
		rc=1
	elif (cd "$at" && RONDO_CACHE='' timeout 30 "build/unit/$test") >"$at/log" 2>&1; then
		echo "FAIL $1: $test does not notice: $(head -n 1 "$patch")"
		rc=1
	fi
	patch -s -R -p1 -d "$at" <"$patch"
	return $rc
}

for name in "${names[@]}"; do
	if notices "$name"; then echo "ok $name"; passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
