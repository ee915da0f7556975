#!/usr/bin/env bash
# tests/fuzz.sh TARGETS SECONDS SOURCES [FOLDER ..]: build each target with clang and sanitizers, run it for so long.
# Seeds are the tests' own programs and those of the folders.  Finds lie in build-fuzz/; keep one as a test
# (tests/hlo/found, tests/golden) with its fix.
set -eu
cd "$(dirname "$0")/.."
targets="$1" seconds="$2"
read -ra src <<<"$3"
shift 3
out=build-fuzz
mkdir -p "$out"

# Files that find gives, small ones, under names of their own.
seeds() {
	find "$@" | while read -r f; do
		[ "$(stat -c %s "$f")" -gt 16000 ] || cp "$f" "$out/$t.seeds/$(tr / _ <<<"$f")"
	done
}

for t in $targets; do
	mkdir -p "$out/$t.corpus" "$out/$t.seeds"
	case "$t" in
	hlo) seeds tests/hlo "$@" -name '*.mlirbc' ;;
	ir) seeds tests/golden/ir tests/golden/hlo "$@" -name '*.out' -o -path '*golden/ir/*.in' -o -name '*.ir' ;;
	prog) seeds tests/golden/prog "$@" -name '*.prog' ;;
	esac
	clang -std=c17 -D_GNU_SOURCE -g -O1 -Isrc -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -o "$out/$t" \
		"tests/fuzz/fuzz_$t.c" "${src[@]}" -lm -lpthread
	"$out/$t" -max_total_time="$seconds" -max_len=16000 -timeout=10 -rss_limit_mb=2000 -verbosity=0 -print_final_stats=1 \
		-artifact_prefix="$out/$t-" "$out/$t.corpus" "$out/$t.seeds"
done
