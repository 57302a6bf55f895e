#!/usr/bin/env bash
# Puts headers and libraries of x86-64 that a bare machine lacks into build/carried, from the
# Debian packages that scripts/cross.sh unpacked: bench/device/pack.sh [root]
set -euo pipefail
cd "$(dirname "$0")/../.."
root=${1:-.cache/cross/amd64}/usr
rm -rf build/carried
mkdir -p build/carried/include build/carried/lib
cp -r "$root"/include/isa-l* "$root"/include/xxh*.h build/carried/include/
cp -L "$root"/lib/x86_64-linux-gnu/libisal.so.2 build/carried/lib/
cp build/carried/lib/libisal.so.2 build/carried/lib/libisal.so  # a link may not travel
du -sh build/carried
