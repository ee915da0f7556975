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
		tail -n 5 "${logs[@]}"
	fi
}
