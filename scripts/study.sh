#!/usr/bin/env bash
# Repeats the study of checkpoint-restart (study/checkpoints) on this machine. It can be stopped at any
# time; the next call continues. Passes options, such as --quick or --engine dcp, on.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh release holdfast_program holdfast_python_stub
# torch_checkpointing, where bench.sh has it, too. Without it, its cells are "not run".
rivals=.cache/bench
if ! cmp -s scripts/requirements-bench.txt $rivals/requirements-bench.txt; then
  # shellcheck disable=SC2086 # several options
  .venv/bin/python -m pip install --disable-pip-version-check -q --no-deps --upgrade --target $rivals \
    ${HOLDFAST_PIP_OPTIONS:-} -r scripts/requirements-bench.txt && cp scripts/requirements-bench.txt $rivals/ || true
fi
PYTHONPATH=$PWD/build/release/python:$PWD/$rivals exec .venv/bin/python study/checkpoints/run.py "$@"
