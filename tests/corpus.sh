#!/usr/bin/env bash
# Every program of the corpus through `rondo run`, compared with its expected results, in tiers ref and auto, and
# through the oracle.  tests/jax/expected.txt names results that are nothing but noise, and what may be further off.
#     tests/corpus.sh [-t TIER]... [-j N] [-d DEVICES] [BUILD] [NAME ...]
# With -d each program runs on every set of that many devices, and all sets must give the same bits.
# RONDO_CORPUS is the folder of the corpus.  The last line says "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
tiers=() jobs=1 devices=
while getopts t:j:d: o; do
	case "$o" in
	t) tiers+=("$OPTARG") ;;
	j) jobs="$OPTARG" ;;
	d) devices="$OPTARG" ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
[ ${#tiers[@]} -gt 0 ] || tiers=(eval ref auto)
build="${1:-build}"
[ $# -eq 0 ] || shift
corpus="${RONDO_CORPUS:-../shared/programs}"
[ -d "$corpus" ] || { echo "no corpus in '$corpus'; set RONDO_CORPUS"; exit 1; }
corpus="$(cd "$corpus" && pwd)"
rondo="$PWD/$build/rondo"
log="$(mktemp -d)"
trap 'rm -rf "$log"' EXIT
# The expected results round every addition of bf16 (XLA without excess precision).
export RONDO_EXCESS_PRECISION=0 RONDO_CACHE='' RONDO_CHECK="${RONDO_CHECK:-1}"

expected="$PWD/tests/jax/expected.txt"

one() {
	local tier="$1" name="$2" flag noise coarse rc=0
	flag=(--tier "$tier")
	[ "$tier" = eval ] && flag=(--eval)
	[ -n "$devices" ] && flag+=(--devices "$devices")
	noise="$(awk -v n="$name" '$1 == "noise" && $2 == n { print $3 }' "$expected")"
	[ -z "$noise" ] || flag+=(--atol "$noise")
	coarse="$(awk -v n="$name" '$1 == "coarse" && $2 == n { print $3 }' "$expected")"
	[ -z "$coarse" ] || flag+=(--tol "$coarse")
	timeout 30 "$rondo" run "$corpus/$name.mlirbc" --in "$corpus/$name.npz" --check "$corpus/$name.npz" --quiet "${flag[@]}" \
		>"$log/${name//\//.}.$tier" 2>&1 || rc=$?
	if [ "$rc" = 0 ]; then
		echo pass
	else
		echo "FAIL $tier $name: $( (grep -m1 -E 'error|WRONG' "$log/${name//\//.}.$tier" || echo "exit $rc") | cut -c1-220)"
	fi
}

names=()
if [ $# -gt 0 ]; then
	names=("$@")
else
	while IFS= read -r f; do
		n="${f#"$corpus"/}"
		n="${n%.mlirbc}"
		names+=("$n")
	done < <(find "$corpus" -name '*.mlirbc' | LC_ALL=C sort)
fi
export -f one
export log corpus rondo devices expected
total=$((${#names[@]} * ${#tiers[@]})) done=0 passed=0 failed=0
# shellcheck disable=SC2016
while IFS= read -r line; do
	done=$((done + 1))
	case "$line" in
	pass) passed=$((passed + 1)) ;;
	*) failed=$((failed + 1)); [ -t 1 ] && printf '\r\033[K'; echo "$line" ;;
	esac
	[ -t 1 ] && printf '\r\033[K[%3d %%] %d of %d' $((done * 100 / total)) "$done" "$total"
done < <(for t in "${tiers[@]}"; do for n in "${names[@]}"; do printf '%s\0%s\0' "$t" "$n"; done; done |
	xargs -0 -n 2 -P "$jobs" bash -c 'one "$1" "$2"' _ 2>/dev/null)
[ -t 1 ] && printf '\r\033[K'
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
