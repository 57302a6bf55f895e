#!/usr/bin/env bash
# Repeats the study of checkpoint-restart (study/checkpoints) on this machine. It can be stopped at any
# time; the next call continues. Passes options, such as --quick or --engine dcp, on.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh release holdfast_program holdfast_python_stub
PYTHONPATH=$PWD/build/release/python exec .venv/bin/python study/checkpoints/run.py "$@"
