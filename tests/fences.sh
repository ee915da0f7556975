#!/usr/bin/env bash
# tests/fences.sh [-l]: docs/sym.md gives a reason for every memory order and fence in src/sym, by file and function, and for
# none that is not there.  -l lists what the sources have.
set -eu
cd "$(dirname "$0")/.."

# file function order, once each
list() {
	awk '
	FNR == 1 { fn = "" }
	/^#define [A-Za-z_]+\(/ { fn = $2; sub(/\(.*/, "", fn) }
	/^[a-z].*\(/ && !/;$/ { fn = $0; sub(/\(.*/, "", fn); sub(/.*[ *]/, "", fn) }
	/^[a-z].*\).*\{.*\}$/ { fn = $0; sub(/\(.*/, "", fn); sub(/.*[ *]/, "", fn) }
	{
		line = $0
		while (match(line, /memory_order_[a-z_]+/)) {
			order = substr(line, RSTART + 13, RLENGTH - 13)
			if (line ~ /atomic_signal_fence/) order = "signal_fence"
			if (line ~ /atomic_thread_fence/) order = "thread_fence"
			print fn, order
			line = substr(line, RSTART + RLENGTH)
		}
		if ($0 ~ /sym_full_fence\(\);/) print fn, "full_fence"
		if ($0 ~ /sym_barrier\(.*\);/ && $0 !~ /^void/) print fn, "membarrier"
	}' "$1" | sort -u | sed "s|^|$(basename "$1") |"
}

have() { for f in src/sym/*.c src/sym/*.h; do list "$f"; done | sort -u; }

if [ "${1:-}" = -l ]; then
	have
	exit
fi
# Rows of the table: | file function, function, file function | order, order | reason |
want() {
	sed -n '/^| where | order | reason |/,/^$/p' docs/sym.md | awk -F'|' 'NR > 2 && $4 ~ /[a-z]/ {
		gsub(/`/, "")
		n = split($3, order, ",")
		m = split($2, where, ",")
		for (k = 1; k <= m; k++) {
			if (split(where[k], w, " ") == 2) { file = w[1]; fn = w[2] } else fn = w[1]
			for (i = 1; i <= n; i++) { gsub(/ /, "", order[i]); print file, fn, order[i] }
		}
	}' | sort -u
}
if ! diff <(want) <(have); then
	echo "docs/sym.md, 'Orders and fences': < is not in the sources, > has no reason there (tests/fences.sh -l lists them)"
	exit 1
fi
