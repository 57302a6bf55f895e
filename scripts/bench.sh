#!/usr/bin/env bash
# Builds and runs every benchmark; options go to the programs, such as
# --benchmark_filter=Index. One that misses its bar fails, the others still run.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh release all holdfast_bench
failed=()
for source in bench/*_bench.cpp; do
  name=$(basename "$source" .cpp)
  echo "== $name"
  "build/release/bench/$name" "$@" || failed+=("$name")
done
for source in bench/*_bench.py; do
  echo "== $(basename "$source" .py)"
  PYTHONPATH=build/release/python .venv/bin/python "$source" || failed+=("$source")
done
if [[ ${#failed[@]} != 0 ]]; then
  echo "bench: failed: ${failed[*]}" >&2
  exit 1
fi
