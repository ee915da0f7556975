#!/usr/bin/env bash
# Which folder may include which: other folders' headers are src/X/X.h and src/X/*.def, and only those of
# the folders named here.  And what a line can show of how folders are written.
set -u
cd "$(dirname "$0")/.." || exit 1
bad=0

may() {
	case "$1" in
	base) ;;
	prog) echo base ;;
	ir) echo base ;;
	kern) echo base prog ;;
	eval) echo base ir prog kern ;;
	hlo) echo base ir ;;
	plan) echo base prog ;;
	gen) echo base ir prog ;;
	spmd) echo base ir eval plan ;;
	lower) echo base ir prog plan gen spmd eval ;;
	attn) echo base ir eval ;;
	pass) echo base ir prog plan gen spmd eval lower attn ;;
	sym) echo base ;;
	coll) echo base prog kern sym ;;
	rt) echo base prog plan kern sym coll ;;
	pjrt) echo base ir hlo spmd pass lower prog plan rt ;;
	tool) echo base ir hlo prog kern eval plan gen spmd lower attn pass sym coll rt ;;
	*) echo "folder '$1' is not in the table of tests/layers.sh" >&2; bad=1 ;;
	esac
}

for dir in src/*/; do
	me="$(basename "$dir")"
	allowed=" $(may "$me") $me "
	while IFS=: read -r file line text; do
		inc="$(sed -n 's/.*#include "\(.*\)".*/\1/p' <<<"$text")"
		case "$inc" in
		../*/*)
			other="${inc#../}" name="${inc##*/}"
			other="${other%%/*}"
			if [[ "$allowed" != *" $other "* ]]; then
				echo "$file:$line: $me may not include $other"
				bad=1
			elif [ "$other" != "$me" ] && [ "$name" != "$other.h" ] && [[ "$name" != *.def ]]; then
				echo "$file:$line: '$inc' is private to $other"
				bad=1
			fi
			;;
		*/*) echo "$file:$line: '$inc' is two levels deep"; bad=1 ;;
		esac
	done < <(grep -HnE '^ *#include "' "$dir"*.c "$dir"*.h "$dir"*.def 2>/dev/null)
done

# Attributes of operations are read by their names (AT_ of ops.def).
if grep -nE '\b(ir_attrs?|ir_attr_set|ir_attr_word)\(([^(),]*|ir_def\([^()]*\)), ?([^(),]*|ir_def\([^()]*\)), [0-9]+[,)]' src/*/*.c src/*/*.h ||
   grep -nE '\b(num|list|count|length|axes|range|within)\(a, [0-9]+[,)]' src/ir/*; then
	echo "an attribute by number"
	bad=1
fi
# C says nothing of which comes first, the list's place or the call that may move it.
if grep -nE '(group|shard|type|mesh)\.p\[(part_[a-z_]+|ir_[a-z]+_add|ir_tensor|ir_scalar)\(' src/*/*.c; then
	echo "a list that is indexed by what may move it"
	bad=1
fi
# Which dimensions of a product are contracted is said by the table of axes; eval passes its lists on to the kernel.
if grep -nE '\bAT_[lr][bc]\b' src/*/*.c | grep -vE '^src/ir/|^src/eval/steps.c:.*static const enum ir_at list'; then
	echo "dimensions of a product outside the table of axes (ir_axes_of)"
	bad=1
fi
# Operands, parameters and results of loops are numbered by ir_loop_view and ir_loop_add.
if grep -nE '\bAT_role\b' src/*/*.c | grep -vE '^src/ir/'; then
	echo "roles of a loop outside ir_loop_view"
	bad=1
fi
# Which of two arguments is evaluated first is the compiler's choice: no two of them emit an op, or a program's text would depend on it.
emit='\bir_(bin|un|select|convert|const|const_[if]|iota|splat_of|broadcast|reshape|slice|transpose|reduce1|param)'
if grep -nP "$emit(\((?:[^()]++|(?2))*\)), (?:[^();=]*, )?$emit\(" src/*/*.c; then
	echo "ops emitted by two arguments of one call"
	bad=1
fi
# What a processor is called and can, and how code for it is handed over, is said by the table of targets and what writes its code.
host='^src/gen/(host\.def|emit_host\.c):'
if grep -niE 'x86|-linux|\b(avx|sse[0-9]|[xyz]mm\b|amx)|\belf(32|64)?\b|elf\.h|relocatable' src/{ir,hlo,eval,spmd,gen,lower,pass,prog}/*.{c,h,def} 2>/dev/null | grep -vE "$host"; then
	echo "a processor or its object files outside the table of targets"
	bad=1
fi
# Nor does anything ask which target it is.
if grep -nE '\bcpu_(get|info)\b|->(triple|cpu|features|id)\b|\bstr[a-z]*(cmp|str) ?\(.*->name\b' src/gen/*.{c,h} | grep -vE "$host|^src/gen/target\.[ch]:"; then
	echo "generated code that depends on which target it is, not on what the target says"
	bad=1
fi
# Each rewrite has a golden test of its own, which changes something.
while IFS= read -r r; do
	t="tests/golden/rewrite/$r"
	if ! grep -qx "# RUN: opt %s --rewrite $r" "$t.in" 2>/dev/null || [ ! -f "$t.out" ]; then
		echo "rewrite '$r' has no test $t.in"
		bad=1
	fi
done < <(sed -n 's/^REWRITE(\([a-z_]*\),.*/\1/p' src/pass/rewrites.def)
# Each pass has golden tests of its own that show what it changes, tests/golden/pass/PASS-*.in, and what not, PASS-not-*.in.
while IFS= read -r p; do
	changes='' leaves=''
	for t in tests/golden/pass/"$p"-*.in; do
		grep -qsE '^# RUN: .*opt %s .*(--only|-p) ' "$t" || continue
		case "$t" in
		*/"$p"-not-*) [ ! -f "${t%.in}.out" ] && [ ! -f "${t%.in}.err" ] || leaves=1 ;;
		*) [ ! -f "${t%.in}.out" ] || changes=1 ;;
		esac
	done
	[ "$changes" ] || { echo "pass '$p' has no test tests/golden/pass/$p-*.in of what it changes"; bad=1; }
	[ "$leaves" ] || { echo "pass '$p' has no test tests/golden/pass/$p-not-*.in of what it leaves alone"; bad=1; }
done < <(sed -n 's/^\t{ "\([a-z0-9]*\)",.*/\1/p' src/pass/compile.c)
exit "$bad"
