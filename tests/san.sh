#!/usr/bin/env bash
# Unit tests under sanitizers: address and undefined behaviour for all, threads for what has threads.
# The last line says "N passed, N failed".      -b: builds them only
set -u
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0 only="${1:-}"
jobs="$(nproc)"

part() {
	local san="$1" build="build-${1//,/-}" line
	shift
	[ $# -gt 0 ] || return
	if ! make -s -j"$jobs" SAN="$san" CFLAGS='-Og -g1' "$build/librondo_gen.so" "${@/#/$build/unit/}"; then
		failed=$((failed + 1))
		return
	fi
	[ "$only" != -b ] || return
	line="$(tests/check.sh "$build" "$@" | tee >(cat >&2) | tail -n 1)"
	passed=$((passed + ${line%% *}))
	line="${line##*, }"
	failed=$((failed + ${line%% *}))
}

all=() threads=()
for f in tests/unit/*.c; do
	f="$(basename "$f" .c)"
	all+=("$f")
	case "$f" in pjrt* | rt* | sym* | coll* | event* | thread* | fiber) threads+=("$f") ;; esac
done
# What only the memory of a thread points to is a leak: with threads that loaded a library the search does not survive otherwise.
export ASAN_OPTIONS=detect_leaks=1 LSAN_OPTIONS="suppressions=$PWD/tests/lsan.supp:print_suppressions=0:use_tls=0" TSAN_OPTIONS=halt_on_error=1
export UCX_MEM_EVENTS=n         # UCX's hooks in malloc and the thread sanitizer's do not go together
# UCX patches mmap and its kin, and so does the thread sanitizer.
export UCX_MEM_MMAP_HOOK_MODE=none
export DRAWS=10                 # how many cases are right is not asked here
part address,undefined "${all[@]}"
part thread "${threads[@]}"
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
