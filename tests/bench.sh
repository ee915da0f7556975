#!/usr/bin/env bash
# tests/bench.sh BUILD: `rondo bench coll`: what it refuses, and the table it writes: where that goes from one algorithm to
# another, their measured curves cross.
set -eu
cd "$(dirname "$0")/.."
rondo="$1/rondo"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
export RONDO_CACHE="$dir/cache"

# refuses TEXT OPTION ..
refuses() {
	local want="$1" rc=0
	shift
	"$rondo" bench coll --max 64 --rounds 1 "$@" >"$dir/out" 2>&1 || rc=$?
	if [ "$rc" != 2 ] || ! grep -qF -- "$want" "$dir/out"; then
		echo "rondo bench coll $*: exit $rc, not: $want"
		tail -n 3 "$dir/out"
		exit 1
	fi
}
refuses "did you mean 'all_reduce'" --op all_reduc
refuses "'--op' names nothing" --op ,
refuses "did you mean 'ring'" --algorithm rnig
refuses "'all_gather' cannot be done by 'loan'" --op all_gather --algorithm loan
refuses 'takes no value' --op barrier --fine=3
refuses 'a number from 2 to 64' --pes 1
refuses 'a multiple of 8' --min 9
refuses "'--min' is above" --min 128
refuses 'one size only' --op barrier --plot "$dir/x.svg"
refuses 'needs a collective' --op put_signal --write
refuses 'needs a collective' --op permute --algorithm auto --write
refuses "cannot create '$dir/none/x.svg'" --op permute --algorithm slot --plot "$dir/none/x.svg"
RONDO_CACHE='' refuses 'no place for the table' --op permute --write
if [ -c /dev/full ] && "$rondo" bench coll --op barrier --algorithm slot --rounds 1 >/dev/full 2>"$dir/out"; then
	echo 'a full disk behind standard output was not seen'
	exit 1
fi
# What is no file is written into, and stays.
mkfifo "$dir/pipe"
cat "$dir/pipe" >"$dir/x.svg" &
"$rondo" bench coll --op permute --algorithm slot --max 64 --rounds 1 --plot "$dir/pipe" >/dev/null
wait
grep -q '</svg>' "$dir/x.svg" && [ -p "$dir/pipe" ]

"$rondo" bench coll --op all_reduce,all_gather,permute --min 256 --max 65536 --rounds 1 --write --plot "$dir/x.svg" >"$dir/times"
grep -q '</svg>' "$dir/x.svg"
# Straight between sizes on logarithmic paper; a threshold is a whole number of bytes.
awk -F'[\t ]' '
FNR == NR { if ($2 ~ /^[0-9]+$/) { t[$1, $2, $3] = log($4); size[$2] } next }
function at(k, x, a,   n, lo, hi) {
	for (n in size) {
		n += 0
		if (n <= x && n > lo) lo = n
		if (n >= x && (!hi || n < hi)) hi = n
	}
	return lo == hi ? t[k, lo, a] : t[k, lo, a] + (t[k, hi, a] - t[k, lo, a]) * (log(x) - log(lo)) / (log(hi) - log(lo))
}
$1 == "pair" && ($2 == "all_reduce" || $2 == "all_gather" || $2 == "permute") {
	for (i = 4; i < NF; i += 2) {
		d = at($2, $i, $(i + 1)) - at($2, $i, $(i - 1))
		if (d > 0.015 || d < -0.015) { print $2 ": at " $i " bytes, from " $(i - 1) " to " $(i + 1) ", by " d; bad = 1 }
	}
	rows++
}
END { exit bad || rows != 3 }' "$dir/times" "$RONDO_CACHE"/coll-*.txt
