#!/usr/bin/env bash
# One golden test: tests/golden.sh TOOL FILE.in [-u]
# The first line of FILE.in is "# RUN: arguments of the tool", settings as NAME=VALUE before them, with %s for the file's name;
# FILE.out is what it prints, or FILE.err the error of a run that must fail.  -u writes these anew.
set -u
tool="$1" in="$2" update="${3:-}"
base="${in%.in}"
read -r args <"$in"
case "$args" in "# RUN: "*) args="${args#"# RUN: "}" ;; *) args='' ;; esac
[ -n "$args" ] || { echo "$in: the first line is not '# RUN: ...'"; exit 1; }
export RONDO_TABLE=default
read -ra words <<<"${args//%s/$in}"
while [[ "${words[0]}" == [A-Z]*=* ]]; do
	export "${words[0]}"
	words=("${words[@]:1}")
done
out="$(mktemp)" err="$out.err"
trap 'rm -f "$out" "$err"' EXIT
if timeout 60 "$tool" "${words[@]}" >"$out" 2>"$err"; then
	want="$base.out" got="$out"
else
	rc=$?
	[ "$rc" -lt 124 ] || { echo "$in: exit $rc"; cat "$err"; exit 1; }
	want="$base.err" got="$err"
fi
if [ "$update" = -u ]; then
	cp "$got" "$want"
	exit
fi
[ -f "$want" ] || { echo "$in: ${want##*/} does not exist; the run printed:"; cat "$got"; exit 1; }
diff -u "$want" "$got"
