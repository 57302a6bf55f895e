#!/usr/bin/env bash
# Runs the study of flipped bits (study/corruption), and makes docs/studies/corruption.md from it.
# It can be stopped at any time; the next call continues. Passes options, such as --scale 0.1, on.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh release holdfast_program holdfast_python_stub
if ! scripts/rivals.sh horovod; then
  echo "campaign: scripts/rivals.sh failed; cells with Horovod are left out" >&2
fi
for framework in tensorflow chainer; do
  if ! scripts/foreign_environment.sh $framework >/dev/null; then
    echo "campaign: $framework could not be installed; its cells are left out" >&2
  fi
done
# Trials that have run stand in study/corruption/trials. A campaign that is complete is not run again, wherever it ran.
if ! .venv/bin/python study/corruption/archive.py unpack study/corruption/trials .cache/campaign; then
  echo "campaign: goes on with the trials of .cache/campaign alone" >&2
fi
PYTHONPATH=$PWD/build/release/python exec .venv/bin/python study/corruption/run.py \
  --program build/release/bin/holdfast "$@"
