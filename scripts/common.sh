# shellcheck shell=bash
# What the scripts share.  They run from the root of the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\n== %s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# Hash of the contents of files and folders.
digest() { find "$@" -type f -not -path '*/__pycache__/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1; }

# True if the stamp file holds this text.
stamped() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }
