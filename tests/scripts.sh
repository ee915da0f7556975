#!/usr/bin/env bash
# Runs shellcheck over every shell script; last line "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0
while IFS= read -r f; do
	if shellcheck -x "$f"; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
	fi
done < <(grep -lE '^#!.*\b(ba)?sh$' scripts/* .ci/* tests/*.sh tests/*/*.sh bench/*.sh 2>/dev/null)
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
