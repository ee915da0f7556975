#!/usr/bin/env bash
# tests/install.sh BUILD: the communication library, installed into a folder of its own, is enough for a program that knows
# nothing but pkg-config; its headers stand alone; its manual names what there is and only that.
set -eu
cd "$(dirname "$0")/.."
build="$1"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
# Standard input must be empty.
none() { if grep .; then echo "$1"; exit 1; fi; }
set -o pipefail
make -s B="$build" PREFIX="$dir/usr" install-sym
export PKG_CONFIG_PATH="$dir/usr/lib/pkgconfig" PATH="$dir/usr/bin:$PATH" LD_LIBRARY_PATH="$dir/usr/lib"
cp examples/symmetric.c "$dir"
cd "$dir"
for h in base/base sym/sym coll/coll prog/prog; do
	echo "#include <rondo/$h.h>" >h.c
	for cc in gcc clang; do
		# shellcheck disable=SC2046
		$cc -std=c17 -Wall -Wextra -Wno-unused-parameter -Werror $(pkg-config --cflags rondo-sym) -fsyntax-only h.c
	done
done
for cc in gcc clang; do
	# shellcheck disable=SC2046
	$cc -std=c17 -Wall -Werror -o "symmetric-$cc" symmetric.c $(pkg-config --cflags --libs rondo-sym)
	# shellcheck disable=SC2046
	$cc -std=c17 -o "static-$cc" symmetric.c $(pkg-config --cflags rondo-sym) usr/lib/librondo_sym.a $(pkg-config --static --libs-only-l rondo-sym | sed 's/-lrondo_sym//')
	for p in "symmetric-$cc" "static-$cc"; do
		RONDO_CACHE='' rondo launch -n 4 -- "./$p" >out
		[ "$(grep -c 'from all 655360$' out)" = 4 ] || { cat out; exit 1; }
	done
	RONDO_CACHE='' "./symmetric-$cc" | grep -q 'from all 65536$'
done
# Nothing of this machine in what was installed; only public names.
{ grep -rIl "$dir" usr/include usr/share || true; } | none 'names the folder it was installed in'
nm --defined-only --extern-only usr/lib/librondo_sym.a | awk 'NF == 3 { print $3 }' | sort >static
nm -D --defined-only usr/lib/librondo_sym.so | awk '{ print $3 }' | sort | diff static -
# Every function and object that an installed header declares is there.
printf '#include <rondo/%s.h>\n' base/base sym/sym coll/coll prog/prog >h.c
# shellcheck disable=SC2046
gcc -std=c17 $(pkg-config --cflags rondo-sym) -aux-info calls -S -o h.s h.c
{
	sed -nE '\|usr/include/rondo/|!d; / static /d; s/^[^(]*[ *]([a-z][a-z0-9_]*) \(.*/\1/p' calls
	sed -nE 's/^extern [^;]*[ *]([a-z_]+)\[.*/\1/p' usr/include/rondo/*/*.h
} | grep -vx free | sort -u | comm -23 - static | none 'declared, but not there'
# The manual: every call it names is there, and every call is named.
grep -E '^(sym|coll)_' usr/share/man/man3/rondo-sym.3 | tr ' ' '\n' | sort -u >named
comm -23 named static | none 'in the manual, but not there'
grep -E '^(sym|coll)_' static | comm -23 - named | none 'not in the manual'
for m in usr/share/man/man1/rondo.1 usr/share/man/man1/rondo-launch.1 usr/share/man/man3/rondo-sym.3; do
	if command -v man >/dev/null; then
		LC_ALL=C.UTF-8 MANWIDTH=200 man --warnings -l "$m" 2>&1 >/dev/null | none "$m"
	fi
done
