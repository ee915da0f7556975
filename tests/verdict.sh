#!/usr/bin/env bash
# For scripts of cases: sourced.  `logs` is what to show of a case that failed.
passed=0 failed=0 logs=()

# verdict NAME STATUS
verdict() {
	if [ "$2" = 0 ]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "FAIL $1"
		[ ${#logs[@]} = 0 ] || tail -n "${lines:-5}" "${logs[@]}"
	fi
}

# skip NAME WHY: this machine cannot run it; scripts/test lists and counts these lines
skip() { echo "SKIP $1: $2"; }

# The last line, and the exit status.
result() {
	printf '%d passed, %d failed\n' "$passed" "$failed"
	[ "$failed" = 0 ]
}
