#!/usr/bin/env bash
# tests/model.sh: spin looks at all states of the models in tests/model: those that are right have no error, each mutant has
# one.  The last line says "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
command -v spin >/dev/null || { echo 'spin is not installed (package spin)'; echo '0 passed, 1 failed'; exit 1; }
# shellcheck source=tests/verdict.sh
. tests/verdict.sh
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
logs=("$dir/log") lines=20

# check NAME ERRORS FLAG..: want no error (0) or some (1)
check() {
	local name="$1" want="$2" errors
	shift 2
	(cd "$dir" && spin "$@" -a "$OLDPWD/tests/model/$name.pml" && ${CC:-cc} -O0 -w -DSAFETY -DCOLLAPSE -DVECTORSZ=4096 -DMEMLIM=4096 -o pan pan.c &&
		./pan -m200000 -w21) >"${logs[0]}" 2>&1
	errors="$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' "${logs[0]}")"
	[ -n "$errors" ] && [ $((errors > 0)) = "$want" ] &&
		{ [ "$want" = 1 ] || ! grep -qE 'max search depth too small|out of memory|Search not completed' "${logs[0]}"; }
	verdict "$name $* (errors: ${errors:-none}, wanted $want)" $?
}

for scene in 1 2 3 4 5 6 7 8; do
	check chan 0 -DSCENE=$scene
done
check chan 1 -DSCENE=2 -DMUTANT=1
check chan 1 -DSCENE=2 -DMUTANT=2
check chan 1 -DSCENE=1 -DMUTANT=3
check chan 1 -DSCENE=3 -DMUTANT=4
check chan 1 -DSCENE=4 -DMUTANT=5
check chan 1 -DSCENE=7 -DMUTANT=6
for mutant in 7 8 9 10 11; do
	check chan 1 -DSCENE=8 -DMUTANT=$mutant
done
check post 0
check post 1 -DMUTANT=1
check post 1 -DMUTANT=2
for scene in 1 2; do
	check loan 0 -DSCENE=$scene
done
for mutant in 1 2 3; do
	check loan 1 -DSCENE=1 -DMUTANT=$mutant
done
for mutant in 4 5; do
	check loan 1 -DSCENE=2 -DMUTANT=$mutant
done
check bell 0
for mutant in 1 2 3; do
	check bell 1 -DMUTANT=$mutant
done
for scene in 1 2 3; do
	check wait 0 -DSCENE=$scene
done
for mutant in 1 2 3 4 5 6 7 8; do
	check wait 1 -DSCENE=1 -DMUTANT=$mutant
done
for mutant in 9 10; do
	check wait 1 -DSCENE=2 -DMUTANT=$mutant
done
for mutant in 11 12 13; do
	check wait 1 -DSCENE=3 -DMUTANT=$mutant
done
check rest 0
for mutant in 1 2 3 4; do
	check rest 1 -DMUTANT=$mutant
done
check given 0
for mutant in 1 2 3 4 5; do
	check given 1 -DMUTANT=$mutant
done
result
