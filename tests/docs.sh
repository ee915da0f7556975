#!/usr/bin/env bash
# tests/docs.sh BUILD [-u]: the list of operations in docs/ir.md is what the tool prints.  -u writes it anew.
set -u
cd "$(dirname "$0")/.." || exit 1
want="$(mktemp)"
trap 'rm -f "$want"' EXIT
sed '/^| operation |/,$d' docs/ir.md >"$want"
"$1/rondo" opt --ops >>"$want" || exit 1
if [ "${2:-}" = -u ]; then
	cp "$want" docs/ir.md
	exit
fi
diff -u docs/ir.md "$want" || { echo "docs/ir.md is stale: tests/docs.sh $1 -u"; exit 1; }
