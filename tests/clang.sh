#!/usr/bin/env bash
# Every file of ours, unit tests too, is C for clang as it is for gcc: neither an error nor a warning.
set -u
cd "$(dirname "$0")/.." || exit 1
command -v clang >/dev/null || { echo "clang is not installed"; exit 1; }
llvm="$(llvm-config-19 --cflags | tr ' ' '\n' | grep '^-I' | tr '\n' ' ')"
# shellcheck disable=SC2086
printf '%s\n' src/*/*.c tests/unit/*.c | xargs -P "$(nproc)" -n 12 clang -fsyntax-only -Werror -std=c17 -D_GNU_SOURCE -Wall -Wextra -Wshadow \
	-Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers -Isrc $llvm
