#!/usr/bin/env bash
# tests/order.sh [BUILD]: the files of a folder have an order: who uses a symbol of another file comes after it, and no way leads
# back.  What calls back and forth belongs together, or what both need apart from them, below.  Names the uses that make a circle.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
build="${1:-build}"
bad=0 seen=0

# Recursion as the data has it, a region inside a region: "folder from to symbol: reason".
known='
eval coll eval walk_fn: the body of a manual computation is walked as the function around it is
eval region eval walk_fn: what reduces, compares or selects may be any function
hlo region custom composite_known: a composite may hold a function, which is read as the one around it is
lower flow lower lower_ops: the body of a loop, or of a case, is lowered as the function around it is
lower group lower lower_ops: what a group without a kernel of its own holds is lowered as what is around it
'

# "user definer symbol": each symbol that one object uses and another defines.
uses() {
	nm -A "$@" | awk '
		{ f = $1; sub(/:.*/, "", f); sub(/.*\//, "", f); sub(/\.o$/, "", f) }
		$(NF - 1) == "U" { user[++n] = f; of[n] = $NF }
		$(NF - 1) ~ /^[TDBRVWCi]$/ { where[$NF] = f }
		END { for (i = 1; i <= n; i++) if (of[i] in where && where[of[i]] != user[i]) print user[i], where[of[i]], of[i] }'
}

while read -r dir _; do
	if [ -n "$dir" ] && [ ! -d "src/$dir" ]; then
		echo "tests/order.sh names a folder that is not there: $dir"
		bad=1
	fi
done <<<"$known"

for dir in src/*/; do
	dir="$(basename "$dir")" objects=() missing=()
	for c in "src/$dir"/*.c; do
		o="$build/$dir/$(basename "$c" .c).o"
		if [ -f "$o" ]; then objects+=("$o"); else missing+=("$o"); fi
	done
	[ "${#objects[@]}" -gt 0 ] || continue          # a build of some folders
	seen=1
	if [ "${#missing[@]}" -gt 0 ]; then
		echo "not built: ${missing[*]}"
		bad=1
	fi
	uses "${objects[@]}" | awk -v dir="$dir" -v known="$known" '
		# to[a, b]: from a there is a way to b
		function ways(all,   a, b, c) {
			split("", to)
			for (i = 1; i <= n; i++)
				if (all || !(use[i] in may))
					to[from[i], def[i]] = 1
			for (c in file) for (a in file) if ((a, c) in to) for (b in file) if ((c, b) in to) to[a, b] = 1
		}
		BEGIN {
			m = split(known, line, "\n")
			for (i = 1; i <= m; i++) {
				split(line[i], w, /[ :]+/)
				if (w[1] == dir)
					may[w[2] " " w[3] " " w[4]] = 1
			}
		}
		{ from[++n] = $1; def[n] = $2; of[n] = $3; use[n] = $0; file[$1]; file[$2] }
		END {
			ways(1)
			for (i = 1; i <= n; i++)
				if ((def[i], from[i]) in to)
					circle[use[i]] = 1
			for (k in may)
				if (!(k in circle)) {
					print "tests/order.sh names what is no circle: " dir " " k
					bad = 1
				}
			ways(0)
			for (i = 1; i <= n; i++)
				if (!(use[i] in may) && (def[i], from[i]) in to) {
					print "a circle in src/" dir ": " from[i] ".c uses " of[i] " of " def[i] ".c"
					bad = 1
				}
			exit bad
		}' || bad=1
done
if [ "$seen" = 0 ]; then
	echo "nothing is built in '$build'"
	bad=1
fi
exit "$bad"
