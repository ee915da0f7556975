#!/usr/bin/env bash
# tests/docs.sh BUILD [-u]: the list of operations in docs/ir.md is what the tool prints, the commands and settings in rondo(1) as well, examples between <!-- FILE [WORD] --> and
# <!-- / --> are what a golden test prints, from the line WORD on (-u writes both anew), and the version is one.
set -u
cd "$(dirname "$0")/.." || exit 1
want="$(mktemp)"
trap 'rm -f "$want"' EXIT

for page in docs/explain.md docs/profile.md; do
	awk '
		/^<!-- \/ -->$/ { skip = 0 }
		!skip { print }
		/^<!-- tests\/[^ ]*( [^ ]*)? -->$/ {
			skip = 1
			from = $3 == "-->"
			while ((getline line < $2) > 0)
				if (from = from || line == $3)
					print line == "" ? line : "    " line
			close($2)
		}' "$page" >"$want"
	if [ "${2:-}" = -u ]; then
		cp "$want" "$page"
	else
		diff -u "$page" "$want" || { echo "$page is stale: tests/docs.sh $1 -u"; exit 1; }
	fi
done
page=docs/man/rondo.1
made="$("$1/rondo" completion man)" || exit 1
made="$made" awk '/^\.\\" end/ { skip = 0 } !skip { print } /^\.\\" made of/ { skip = 1; print ENVIRON["made"] }' "$page" >"$want"
if [ "${2:-}" = -u ]; then
	cp "$want" "$page"
else
	diff -u "$page" "$want" || { echo "$page is stale: tests/docs.sh $1 -u"; exit 1; }
fi
sed '/^| operation |/,$d' docs/ir.md >"$want"
"$1/rondo" opt --ops >>"$want" || exit 1
if [ "${2:-}" = -u ]; then
	cp "$want" docs/ir.md
	exit
fi
diff -u docs/ir.md "$want" || { echo "docs/ir.md is stale: tests/docs.sh $1 -u"; exit 1; }
for f in pyproject.toml python/rondo/__init__.py; do
	grep -Eq "^(__)?version(__)? = \"$("$1/rondo" --version | cut -d' ' -f2)\"$" "$f" || { echo "$f has another version than src/base/base.h"; exit 1; }
done
