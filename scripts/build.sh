#!/usr/bin/env bash
# Configures and builds one preset: scripts/build.sh PRESET [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
preset=$1
shift
log=build/$preset-configure.log
mkdir -p build
if ! cmake --preset "$preset" >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
cmake --build "build/$preset" ${1:+--target "$@"}
