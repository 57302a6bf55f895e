#!/usr/bin/env bash
# Builds and runs every benchmark; options go to each, such as --benchmark_filter=Index.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh release holdfast_bench
for source in bench/*_bench.cpp; do
  name=$(basename "$source" .cpp)
  echo "== $name"
  "build/release/bench/$name" "$@"
done
