#!/usr/bin/env bash
# Runs shellcheck over every shell script; last line "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=tests/verdict.sh
. tests/verdict.sh
while IFS= read -r f; do
	shellcheck -x "$f"
	verdict "$f" $?
done < <(grep -lE '^#!.*\b(ba)?sh$' scripts/* .ci/* tests/*.sh tests/*/*.sh bench/*.sh 2>/dev/null)
result
