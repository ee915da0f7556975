#!/usr/bin/env bash
# One golden test: tests/golden.sh TOOL FILE.in [-u]
# The first line of FILE.in is "# RUN: arguments of the tool", with %s for the file's name; FILE.out is what
# it prints, or FILE.err the error of a run that must fail.  -u writes these anew.
set -u
tool="$1" in="$2" update="${3:-}"
base="${in%.in}"
args="$(sed -n '1s/^[#;\/]* *RUN: *//p' "$in")"
[ -n "$args" ] || { echo "$in: the first line is not '# RUN: ...'"; exit 1; }
read -ra words <<<"${args//%s/$in}"
out="$(mktemp)" err="$(mktemp)"
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
