#!/usr/bin/env bash
# The C++ training loop: killed with -9 and asked to stop, started again each time, its losses
# are bit for bit those of a run that nobody touched.
#
#   tests/examples/train_cpp_test.sh PRESET      e.g. release; skipped where there is no torch
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/environment.sh
if ! .venv/bin/python -c "import torch" 2>/dev/null; then
  echo "skipped: .venv has no torch"
  exit 0
fi
log=build/train-cpp.log
if ! { cmake --preset "$1" -D HOLDFAST_EXAMPLES_TORCH=ON &&
       cmake --build "build/$1" --target train; } >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
train=$PWD/build/$1/bin/train
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
die() { echo "train_cpp_test: $*" >&2; cat ./*.log >&2; exit 1; }
steps=2000
lines() { if [[ -f stopped.txt ]]; then wc -l <stopped.txt; else echo 0; fi; }
# begin_until LINES: goes on in the background until there are so many more losses.
begin_until() {
  local want=$(($(lines) + $1))
  "$train" run $steps >>stopped.txt 2>>stopped.log &
  job=$!
  until (($(lines) >= want)); do
    kill -0 $job 2>/dev/null || die "it ended too early"
    sleep 0.01
  done
}
end_with() {
  local code=0
  wait $job 2>/dev/null || code=$?
  [[ $code == "$1" ]] || die "exit code $code, want $1"
}

"$train" whole $steps >whole.txt 2>whole.log || die "it failed"
begin_until 300
kill -9 $job
end_with 137
begin_until 100
kill -TERM $job
end_with 143
"$train" run $steps >>stopped.txt 2>>stopped.log || die "it failed"
[[ $(grep -c "resumed after step" stopped.log) == 2 ]] || die "want it resumed twice"
# Steps after the last save before the kill were made twice, with the same losses.
sort -n -u stopped.txt >sorted.txt
cmp whole.txt sorted.txt || die "the losses differ"
(($(lines) > steps)) || echo "nothing had to be made again"
echo "killed, stopped and resumed: $steps losses are the same bit for bit"
