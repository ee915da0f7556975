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

# Kernels, on all that this machine can do, the best first.  Writes the counts into a file.
kernels() {
	local passed=0 failed=0 log t isa
	log="$(mktemp)"
	for t in tests/unit/kern_*.c tests/unit/gen_random.c; do unit "$build/unit/$(basename "$t" .c)"; done
	for isa in avx512 avx2; do
		for t in kern_math kern_matmul kern_fft kern_views; do RONDO_ISA=$isa unit "$build/unit/$t"; done
	done
	echo "$passed $failed" >"$1"
	rm -f "$log"
}

if [ $# -gt 0 ]; then
	for t in "$@"; do unit "$build/unit/$t"; done
else
	# Two lanes of about the same length.
	side="$(mktemp)"
	kernels "$side" &
	for t in tests/unit/*.c; do
		[[ "$t" == */kern_* || "$t" == */gen_random.c ]] || unit "$build/unit/$(basename "$t" .c)"
	done
	run tests/layers.sh
	run tests/docs.sh "$build"
	run tests/install.sh "$build"
	run tests/fences.sh
	while IFS= read -r f; do run tests/golden.sh "$build/rondo" "$f"; done < <(find tests/golden -name '*.in' 2>/dev/null | LC_ALL=C sort)
fi
if [ -n "${side:-}" ]; then
	wait
	read -r p f <"$side" || p=0 f=1
	count "$p" "$f"
	rm -f "$side"
fi
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
