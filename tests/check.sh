#!/usr/bin/env bash
# Runs unit tests, golden tests and the layer test with the tools of a build folder.
#     tests/check.sh BUILD [unit test ...]
# With names, only those unit tests.  Prints one line a failure, then "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
build="$1"
shift
passed=0 failed=0
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
export RONDO_CACHE=

count() { passed=$((passed + $1)) failed=$((failed + $2)); }

# A cmocka program: one result a test function.
unit() {
	local rc=0 p f
	timeout 300 "$1" >"$log" 2>&1 || rc=$?
	p="$(grep -c '^\[       OK \]' "$log")"
	f="$(grep -c '^\[  FAILED  \].*[a-z]$' "$log")"
	if [ "$rc" != 0 ]; then
		[ "$f" -gt 0 ] || f=1
		echo "FAIL $1 (exit $rc)"
		grep -vE '^\[ (RUN|      OK)' "$log" | tail -n 40
	elif [ "$p" = 0 ]; then
		p=1
	fi
	count "$p" "$f"
}

run() {
	if "$@" >"$log" 2>&1; then
		count 1 0
	else
		count 0 1
		echo "FAIL $*"
		tail -n 40 "$log"
	fi
}

# A lane: the tests that a function names, with counts of their own, which it writes into a file.
lane() {
	local passed=0 failed=0 log
	log="$(mktemp)"
	"$1"
	echo "$passed $failed" >"$2"
	rm -f "$log"
}

# Kernels, on all that this machine can do, the best first.
kernels() {
	local t isa
	for t in tests/unit/kern_*.c tests/unit/gen_random.c; do unit "$build/unit/$(basename "$t" .c)"; done
	for isa in avx512 avx2; do
		for t in kern_math kern_matmul kern_fft kern_views; do RONDO_ISA=$isa unit "$build/unit/$t"; done
	done
}

# Those that mostly wait.
waiting=" sym_conform sym_procs sym_dial rt_multi "
waits() {
	local t
	for t in $waiting; do unit "$build/unit/$t"; done
}

if [ $# -gt 0 ]; then
	for t in "$@"; do unit "$build/unit/$t"; done
else
	# Two lanes of about the same length, and one that takes little of the machine.
	side=("$(mktemp)" "$(mktemp)")
	lane kernels "${side[0]}" &
	lane waits "${side[1]}" &
	for t in tests/unit/*.c; do
		name="$(basename "$t" .c)"
		[[ "$name" == kern_* || "$name" == gen_random || "$waiting" == *" $name "* ]] || unit "$build/unit/$name"
	done
	run tests/layers.sh
	run tests/docs.sh "$build"
	run tests/install.sh "$build"
	run tests/fences.sh
	while IFS= read -r f; do run tests/golden.sh "$build/rondo" "$f"; done < <(find tests/golden -name '*.in' 2>/dev/null | LC_ALL=C sort)
fi
wait
for f in "${side[@]:-}"; do
	[ -n "$f" ] || continue
	read -r p n <"$f" || p=0 n=1
	count "$p" "$n"
	rm -f "$f"
done
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
