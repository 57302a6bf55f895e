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
# Rivals that only benchmarks need. Where there are none to be had, they are left out.
rivals=.cache/bench
if ! cmp -s scripts/requirements-bench.txt $rivals/requirements-bench.txt; then
  # shellcheck disable=SC2086 # several options
  if .venv/bin/python -m pip install --disable-pip-version-check -q --no-deps --upgrade \
    --target $rivals ${HOLDFAST_PIP_OPTIONS:-} -r scripts/requirements-bench.txt; then
    cp scripts/requirements-bench.txt $rivals/
  else
    echo "bench: rivals are not installed" >&2
  fi
fi
for source in bench/*_bench.py; do
  echo "== $(basename "$source" .py)"
  PYTHONPATH=build/release/python:$rivals .venv/bin/python "$source" || failed+=("$source")
done
if [[ ${#failed[@]} != 0 ]]; then
  echo "bench: failed: ${failed[*]}" >&2
  exit 1
fi
