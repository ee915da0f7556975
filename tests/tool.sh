#!/usr/bin/env bash
# tests/tool.sh BUILD: what the command says of this machine and of settings, and what completes it in a shell.
set -u
cd "$(dirname "$0")/.." || exit 1
rondo="$(realpath "$1")/rondo"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; cat "$dir/out" "$dir/err"; exit 1; }

# doctor STATUS COMPLAINTS NAME=VALUE ..
doctor() {
	local rc=0 want="$1" bad="$2"
	shift 2
	env RONDO_CACHE="$dir/cache" "$@" "$rondo" doctor --no-jax >"$dir/out" 2>"$dir/err" || rc=$?
	[ "$rc" = "$want" ] || fail "doctor ends with $rc: $*"
	[ "$(grep -c '^  BAD' "$dir/out")" = "$bad" ] || fail "not $bad complaints: $*"
	[ "$(grep -c '^ *-> ' "$dir/out")" = "$bad" ] || fail "a complaint that does not say what to do: $*"
	[ ! -s "$dir/err" ] || fail "something on standard error: $*"
}
# said WORDS: a complaint has them
said() { grep -q "^  BAD .*$1" "$dir/out" || fail "no complaint '$1'"; }

doctor 0 0 A=
grep -q '^all is well$' "$dir/out" || fail "no end"
[ "$(grep -c 'self-test.*as the oracle has it' "$dir/out")" = 2 ] || fail "no self-test"
doctor 1 2 RONDO_TIER=fast RONDO_DEVCES=2
said "RONDO_TIER' cannot be 'fast'.*auto, ref, gen"
said "unknown setting 'RONDO_DEVCES', did you mean 'RONDO_DEVICES'"
doctor 1 1 RONDO_CORES=1024
said "processor .*1024 of"
doctor 1 1 RONDO_CACHE=/proc/nowhere
said "cache .*/proc/nowhere"
doctor 1 1 RONDO_CACHE=/dev/fd         # root may write it, but it takes nothing
said "cache .*/dev/fd"
doctor 1 1 RONDO_GEN_PATH=/nowhere/gen.so
said "code generator .*/nowhere/gen.so"
doctor 1 1 RONDO_TABLE=/nowhere/table
said "machine table .*/nowhere/table"
doctor 1 1 RONDO_COLL=rings
said "machine table .*no algorithm 'rings'"
grep -q -- '-> unset RONDO_COLL' "$dir/out" || fail "advice on another setting"
for empty in '' '\n' '# nothing\n'; do
	printf '%b' "$empty" >"$dir/empty"
	for what in prog opt explain run; do
		"$rondo" $what "$dir/empty" >"$dir/out" 2>"$dir/err" && fail "$what of an empty file ends well"
		grep -q "'$dir/empty' is empty" "$dir/err" || fail "$what of an empty file says something else"
	done
done
echo 'import jax' >"$dir/script.py"
for what in opt run; do
	"$rondo" $what "$dir/script.py" >"$dir/out" 2>"$dir/err" && fail "$what of a script ends well"
	grep -q "Python script: 'rondo explain' runs it" "$dir/err" || fail "$what of a script does not say what to do with it"
done
RONDO_COLL=rings "$rondo" info >"$dir/out" 2>"$dir/err" || fail "info does not go on as programs do"
grep -q "no algorithm 'rings'.*ignored" "$dir/err" || fail "info ignores without a word"
# What is to be written: it is tried, nothing is left of that, and the self-test adds nothing.
echo old >"$dir/t.json"
doctor 0 0 RONDO_TRACE="$dir/t.json" RONDO_EXPLAIN="$dir/why.txt" RONDO_DUMP="$dir/texts"
[ "$(grep -c '^  ok .*RONDO_\(TRACE\|EXPLAIN\|DUMP\) ' "$dir/out")" = 3 ] || fail "not all that is to be written"
[ "$(cat "$dir/t.json")" = old ] || fail "doctor writes a timeline"
for f in why.txt texts; do [ ! -e "$dir/$f" ] || fail "doctor leaves $f"; done
doctor 0 0 RONDO_TRACE="$dir" RONDO_EXPLAIN=1
doctor 1 3 RONDO_TRACE=/nowhere/t.json RONDO_EXPLAIN=yes RONDO_DUMP="$dir/t.json"
said "RONDO_TRACE .*/nowhere/t.json.*No such file"
said "RONDO_EXPLAIN .*'yes'.*neither 0, nor 1"
said "RONDO_DUMP .*t.json.*Not a directory"
doctor 1 2 RONDO_TRACE=/proc/nowhere RONDO_DUMP=/proc/nowhere
# The generator is found by a command that is called by its name alone, and by one that was installed.
built="${rondo%/*}"
PATH="$built:$PATH" rondo=rondo doctor 0 0 A=
mkdir "$dir/bin" "$dir/lib"
ln "$rondo" "$dir/bin/rondo" 2>/dev/null || cp "$rondo" "$dir/bin/rondo"
ln -s "$built/librondo_gen.so" "$dir/lib"
rondo="$dir/bin/rondo" doctor 0 0 A=
# The help keeps to a terminal's width, with all its words, and is whole lines for a program that reads it.
words() { tr '\n' ' ' | tr -s ' '; }
for what in "help" "help settings" "launch --help" "bench --help"; do
	# shellcheck disable=SC2086
	COLUMNS=80 "$rondo" $what >"$dir/out" 2>"$dir/err" || fail "no $what"
	[ "$(awk 'length > 80' "$dir/out" | wc -l)" = 0 ] || fail "$what is wider than 80 columns"
	# shellcheck disable=SC2086
	[ "$(words <"$dir/out")" = "$("$rondo" $what | words)" ] || fail "$what loses words at 80 columns"
done
"$rondo" launch -n 0 true >"$dir/out" 2>"$dir/err" && fail "no processes at all"
grep -q "option '-n' cannot be '0'" "$dir/err" || fail "an option without its dash"
printf 'module @m\n\nfn @main(%%1: f32[4]) -> (f32[4]) {\n  %%2 = add %%1, %%1 : f32[4]\n  return %%2\n}\n' >"$dir/program"
"$rondo" run "$dir/program" --devices 2000 >"$dir/out" 2>"$dir/err" && fail "more devices than there may be"
grep -q "'--devices' cannot be '2000': a number from 1 to 1024" "$dir/err" || fail "devices without a bound"
# A folder goes before a program of its name.
mkdir "$dir/test"
(cd "$dir" && "$rondo" explain test) >"$dir/out" 2>"$dir/err"
grep -q "'test' has nothing in it that RONDO_EXPLAIN has written" "$dir/err" || fail "a folder is not looked at"
# Python that has no package.
env RONDO_CACHE="$dir/cache" RONDO_PYTHON=/nowhere/python "$rondo" doctor >"$dir/out" 2>"$dir/err" && fail "doctor is content without Python"
said "Python .*/nowhere/python"

# What a command does not take is said with what it takes.
# refuses TEXT ARGUMENT ..
refuses() {
	local text="$1"
	shift
	(cd "$dir" && "$rondo" "$@") >"$dir/out" 2>"$dir/err" && fail "taken: $*"
	grep -q "$text" "$dir/err" || fail "no '$text': $*"
}
printf 'func.func' >"$dir/low.mlir"
printf '#!/bin/sh\n' >"$dir/train"
refuses "'low.mlir': a script's name ends in .py, a program must be executable, .* timeline .* .json" trace low.mlir
refuses "'low.mlir': a script's name ends in .py, a program must be executable" explain low.mlir low.mlir
refuses "'nothing': there is no such file" trace nothing
echo '{ lambda ; a:f32[3]. let in (a,) }' >"$dir/words"
for what in run opt explain; do refuses "words: this is neither StableHLO, .* nor a text of 'rondo opt'" $what words; done
mkfifo "$dir/pipe"
refuses "'pipe' is a pipe" opt pipe
refuses "this is a script: its name must end in .py, or it must be executable" explain train
refuses "no 'nosuch': it is one of all_reduce, .* or idle" bench coll --op nosuch
refuses "'rondo opt --list' has them" opt -p nosuch "$PWD/tests/golden/tool/explain-screen.in"
refuses "'rondo opt --rewrites' has them" opt --rewrite nosuch "$PWD/tests/golden/tool/explain-screen.in"
# What others read is told as settings are.
for name in LIBRARY PYTHON; do
	"$rondo" help settings | grep -q "^  RONDO_$name " || fail "no RONDO_$name in the help"
	env "RONDO_$name=/x" "$rondo" info 2>&1 | grep -q "unknown setting" && fail "RONDO_$name is complained of"
done

# complete WORD ..: what bash offers for the last of them
complete_bash() {
	# shellcheck disable=SC2016
	bash -c 'source <("$1" completion bash); shift; COMP_WORDS=(rondo "$@"); COMP_CWORD=$#; _rondo; echo "${COMPREPLY[*]}"' - "$rondo" "$@" >"$dir/out" 2>"$dir/err"
	[ ! -s "$dir/err" ] || fail "completion of $*"
	cat "$dir/out"
}
all="$("$rondo" help | sed -n 's/^  rondo \([^ ]*\) .*/\1/p' | tr '\n' ' ')"
[ "$(complete_bash '')" = "${all% }" ] || fail "not all commands: $all"
[ "$(complete_bash run --t)" = "--tol --tier" ] || fail "options of run"
[ "$(complete_bash bench '')" = "kern coll peak machine" ] || fail "what bench has"
[ -z "$(complete_bash run x)" ] || fail "a file is for bash itself"
[ "$(complete_bash help se)" = "settings" ] || fail "help on settings"
if command -v zsh >/dev/null; then
	"$rondo" completion zsh >"$dir/_rondo"
	zsh -f -c "fpath=($dir \$fpath); autoload -Uz compinit; compinit -u -d $dir/dump; source $dir/_rondo; whence -v _rondo; print \$_comps[rondo]" >"$dir/out" 2>"$dir/err" || fail "zsh does not take it"
	grep -qx _rondo "$dir/out" || fail "zsh does not know it"
	[ ! -s "$dir/err" ] || fail "zsh complains"
fi
