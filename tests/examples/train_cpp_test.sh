#!/usr/bin/env bash
# Kills the C++ training loop once, asks it to stop once, and starts it again each time. Its losses
# must equal those of an undisturbed run bit for bit.
#
#   tests/examples/train_cpp_test.sh PRESET      e.g. release; skipped if .venv has no torch
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
# begin_until LINES: starts the training in the background and waits for so many more losses.
begin_until() {
  local expected=$(($(lines) + $1))
  "$train" run $steps >>stopped.txt 2>>stopped.log &
  job=$!
  until (($(lines) >= expected)); do
    kill -0 $job 2>/dev/null || die "$train: ended before it had written $expected losses"
    sleep 0.01
  done
}
# end_with CODE: waits until the training ends, which must be with this exit code.
end_with() {
  local code=0
  wait $job 2>/dev/null || code=$?
  [[ $code == "$1" ]] || die "$train: exit code $code; expected $1"
}

"$train" whole $steps >whole.txt 2>whole.log || die "$train whole: failed"
begin_until 300
kill -9 $job
end_with 137
begin_until 100
kill -TERM $job
end_with 143
"$train" run $steps >>stopped.txt 2>>stopped.log || die "$train run: failed"
resumed=$(grep -c "resumed after step" stopped.log || true)
[[ $resumed == 2 ]] || die "stopped.log: resumed $resumed times; expected 2"
# The steps between the last save and the kill were made twice, with the same losses.
sort -n -u stopped.txt >sorted.txt
cmp whole.txt sorted.txt || die "the losses differ"
(($(lines) > steps)) || echo "no step had to be made again"
echo "killed, stopped and resumed: $steps losses are the same bit for bit"
