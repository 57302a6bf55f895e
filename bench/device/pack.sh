#!/usr/bin/env bash
# Copies the x86-64 headers and libraries that a machine with few packages lacks into build/carried.
# They come from the Debian packages that scripts/cross.sh has unpacked, by default below
# .cache/cross/amd64: bench/device/pack.sh [root]
set -euo pipefail
cd "$(dirname "$0")/../.."
root=${1:-.cache/cross/amd64}/usr
rm -rf build/carried
mkdir -p build/carried/include build/carried/lib
cp -r "$root"/include/isa-l* "$root"/include/xxh*.h build/carried/include/
cp -L "$root"/lib/x86_64-linux-gnu/libisal.so.2 build/carried/lib/
cp build/carried/lib/libisal.so.2 build/carried/lib/libisal.so  # a link might not be copied along
du -sh build/carried
