#!/bin/sh
# Build the extension that takes away the server's SQL functions for files (no_file_access.c says why). It needs a C compiler:
#
#   build_extension.sh FOLDER     FOLDER is what SQLD_EXTENSIONS of start.sh names
#
# The server loads exactly what trusted.lst lists, with these hashes, and does not start if a hash is wrong.
set -eu
umask 022

if [ $# -ne 1 ]; then
    echo "usage: build_extension.sh FOLDER" >&2
    exit 2
fi
source=$(cd "$(dirname "$0")" && pwd)/no_file_access.c
compiler=${CC:-cc}
# CC may hold arguments: the first word is the program.
if ! command -v "${compiler%% *}" >/dev/null 2>&1; then
    echo "build_extension.sh: CC must be a C compiler, got ${compiler%% *}; install gcc or clang, or build on another machine of this kind" >&2
    exit 2
fi
mkdir -p "$1"
cd "$1"
# shellcheck disable=SC2086
$compiler -shared -fPIC -O2 -Wall -o no_file_access.so "$source"
if command -v sha256sum >/dev/null 2>&1; then
    sha256sum no_file_access.so >trusted.lst
else
    shasum -a 256 no_file_access.so >trusted.lst
fi
