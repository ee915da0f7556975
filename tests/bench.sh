#!/usr/bin/env bash
# tests/bench.sh BUILD: `rondo bench coll`: what it refuses, what it draws, and that it stores nothing of which it does not know whether the
# machine was quiet.  What a table says: tests/unit/plan_table.c.  `rondo bench kern`: every kernel gives numbers and has a limit.
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
refuses "is of rondo bench kern" --only dot
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

"$rondo" bench coll --op permute --algorithm slot,direct --min 256 --max 65536 --rounds 1 --plot "$dir/x.svg" >/dev/null
grep -q '</svg>' "$dir/x.svg"
# One round does not tell whether the machine was quiet: nothing is stored then.
refuses 'nothing is stored: the machine was not quiet' --op permute --write
refuses "measures the sizes that the table has" --op permute --write --min 64
[ -z "$(find "$RONDO_CACHE" -name 'machine-*')" ]
if "$rondo" bench kern --only nosuch >"$dir/out" 2>&1 || ! grep -qF "no kernel's name contains 'nosuch'; they begin with dot, elem" "$dir/out"; then
	cat "$dir/out"
	exit 1
fi

# Each row has its time, a rate and a limit (a result that is not finite is an error); of memory the limit is what its views hold.
"$rondo" bench kern --seconds 0 --only "4M" >"$dir/out" 2>"$dir/err" || { cat "$dir/out" "$dir/err"; exit 1; }
"$rondo" bench kern --seconds 0 --cores 2 --only "f32 512" >>"$dir/out" 2>"$dir/err" || { cat "$dir/out" "$dir/err"; exit 1; }
awk -F'\t' '
	/^#|^kernel\t/ { next }
	NF != 6 || !($2 > 0 && $3 > 0 && $5 > 0 && $6 > 0) || ($4 != "GB/s" && $4 != "GFLOP/s") { print "no row: " $0; bad = 1 }
	{ got[$1] = $2 * $3 / 1e3; unit[$1] = $4 }
	# MB that the views hold, millions of operations: which of the two is the limit depends on the moment
	function is(row, bytes, ops,   want, d) {
		want = unit[row] == "GB/s" ? bytes : ops
		d = want ? got[row] / want - 1 : 1
		if (d > .01 || d < -.01) { print row ": " got[row] " " unit[row] ", not " want; bad = 1 }
	}
	END {
		is("elem add f32 4M", 50.33); is("elem exponential bf16 4M", 16.78); is("copy f32 4M", 33.55); is("fill f32 4M", 16.78)
		is("reduce_precision f32 4M", 33.55); is("cholesky f32 512", 2.097, 44.74); is("triangular_solve f32 512", 3.146, 134.2)
		exit bad
	}' "$dir/out"
