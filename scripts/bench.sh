#!/usr/bin/env bash
# Builds and runs every benchmark. Passes its options, such as --benchmark_filter=Index, to the
# C++ benchmarks. If a benchmark misses its bar, it fails, and the others still run.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
scripts/build.sh release all holdfast_bench
failed=()
for source in bench/*_bench.cpp; do
  name=$(basename "$source" .cpp)
  echo "== $name"
  "build/release/bench/$name" "$@" || failed+=("$name")
done
# Installs the libraries that Holdfast is compared with. If that fails, the benchmarks run without
# them.
rivals=.cache/bench
if ! cmp -s scripts/requirements-bench.txt $rivals/requirements-bench.txt; then
  # shellcheck disable=SC2086 # several options
  if .venv/bin/python -m pip install --disable-pip-version-check -q --no-deps --upgrade \
    --target $rivals ${HOLDFAST_PIP_OPTIONS:-} -r scripts/requirements-bench.txt; then
    cp scripts/requirements-bench.txt $rivals/
  else
    echo "bench: scripts/requirements-bench.txt could not be installed; some rivals are left out" >&2
  fi
fi
if ! scripts/rivals.sh; then
  echo "bench: what could not be installed is left out" >&2
fi
for source in bench/*_bench.py; do
  echo "== $(basename "$source" .py)"
  PYTHONPATH=build/release/python:$rivals .venv/bin/python "$source" || failed+=("$source")
done
if [[ ${#failed[@]} != 0 ]]; then
  echo "bench: failed: ${failed[*]}" >&2
  exit 1
fi
