#!/usr/bin/env bash
# Runs unit tests, golden tests and those of layers and order with the tools of a build folder.
#     tests/check.sh BUILD [unit test ...]
# With names, only those unit tests.  Prints one line a failure and one for what was skipped, then "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
build="$1"
shift
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
export RONDO_CACHE=

# show LOG: what failed, then the end; what is said again and again hides nothing.
show() {
	grep -E '^\[ +(ERROR|LINE) +\]' "$1" | head -n 20
	grep -vE '^\[ (RUN|      OK)' "$1" | awk '++seen[$0] <= 2' | tail -n 60
}

# took NAME COMMAND ..: and note what time it takes, of the processors and by the clock
took() {
	local TIMEFORMAT="%U %S %R $1"
	shift
	{ time "$@" 2>&3; } 3>&2 2>>"$tmp/times"
}

# unit NAME [ISA]: a cmocka program, on all that this machine can do or on less: one result a test function.
unit() {
	local rc=0 p f log
	log="$(mktemp -p "$tmp")"
	took "$*" env ${2:+RONDO_ISA="$2"} timeout 1200 "$build/unit/$1" >"$log" 2>&1 || rc=$?
	p="$(grep -c '^\[       OK \]' "$log")"
	f="$(grep "^\[  FAILED  \].*[a-z]$" "$log" | sort -u | wc -l)"
	if [ "$rc" != 0 ]; then
		[ "$f" -gt 0 ] || f=1
		echo "FAIL $* (exit $rc)"
		show "$log"
	elif [ "$p" = 0 ] && ! grep -q '^\[  SKIPPED \]' "$log"; then
		f=1
		echo "FAIL $* (it runs no test)"
	fi
	grep -oE '^\[  SKIPPED \] .*' "$log" | sort -u | sed "s/.*\] /SKIP $*: /"
	echo "$p $f" >>"$tmp/counts"
}

run() {
	local log
	log="$(mktemp -p "$tmp")"
	if took "$*" "$@" >"$log" 2>&1; then
		echo 1 0 >>"$tmp/counts"
	else
		echo 0 1 >>"$tmp/counts"
		echo "FAIL $*"
		show "$log"
	fi
}

golden() {
	local f
	while IFS= read -r f; do run tests/golden.sh "$build/rondo" "$f"; done < <(find tests/golden -name '*.in' | LC_ALL=C sort)
}

# lane N COMMAND ..: N of them at a time
lane() {
	local n="$1" command
	shift
	for command in "$@"; do
		if [ "$n" -gt 0 ]; then n=$((n - 1)); else wait -n; fi
		$command &
	done
	wait
}

names=("$@")
[ $# -gt 0 ] || while IFS= read -r f; do names+=("$(basename "$f" .c)"); done < <(find tests/unit -name '*.c' | LC_ALL=C sort)
waiting=() long=() short=()
for t in "${names[@]}"; do
	case "$t" in
	sym_conform) waiting=("unit $t" "${waiting[@]}") ;;
	coll_fail | coll_leave | pjrt_watch | rt_multi | rt_procs | sym_dial | sym_procs | sym_stop) waiting+=("unit $t") ;;
	gen_random) long=("unit $t" "${long[@]}") ;;
	coll_* | gen_elem | kern_attention | kern_matmul | kern_sums | kern_views | pass_joint | pass_long) long+=("unit $t") ;;
	*) short+=("unit $t") ;;
	esac
done
if [ $# = 0 ]; then
	# On less than this machine has.  Of AVX-512, products alone know more than one kind.
	less=() products=()
	case "$("$build/rondo" info | sed -n 's/^ *kernels use *//p')" in
	avx512_bf16 | amx) less=(avx2) products=(avx512 avx2) ;;
	avx512) less=(avx2) products=(avx2) ;;
	esac
	for isa in "${less[@]}"; do
		long+=("unit kern_views $isa")
		short+=("unit kern_math $isa" "unit kern_fft $isa")
	done
	for isa in "${products[@]}"; do long+=("unit kern_sums $isa" "unit kern_matmul $isa" "unit kern_attention $isa"); done
	long+=(golden "run tests/bench.sh $build")
	short+=("run tests/layers.sh" "run tests/clang.sh" "run tests/order.sh $build" "run tests/docs.sh $build" "run tests/install.sh $build" "run tests/tool.sh $build" "run tests/fences.sh")
fi
# What takes long begins first; what mostly waits takes little of the machine.
lane 2 "${waiting[@]}" &
lane "$(nproc)" "${long[@]}" "${short[@]}" &
wait
awk '{ cpu = $1 + $2; at = $3; $1 = $2 = $3 = ""; printf "%7.1f s of processors, %6.1f s: %s\n", cpu, at, $0 }' "$tmp/times" | sort -rn | head -n 10
read -r passed failed < <(awk '{ p += $1; f += $2 } END { print p + 0, f + 0 }' "$tmp/counts")
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
