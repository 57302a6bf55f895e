#!/usr/bin/env bash
# Shows what Holdfast does, on this machine. There is one scene for each capability.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
# Uses the same build folder as make test, but builds only what the scenes need.
scripts/build.sh check holdfast_program holdfast_python_stub save_loop

root=$PWD
bin=$root/build/check/bin
scene() { printf '\n== %s\n\n' "$1"; }
# Shows the command as a person would type it, then runs it.
show() {
  printf '$ %s\n\n' "$*"
  "$bin/$1" "${@:2}"
}

demo=$(mktemp -d)
trap 'rm -rf "$demo"' EXIT
cd "$demo"  # so that paths are shown as a person would type them

scene "Train: a GPT is killed with -9 in the middle, and continues bit for bit"
export PYTHONPATH=$root/build/check/python OMP_NUM_THREADS=1
python=$root/.venv/bin/python
# train RUN: trains, and writes every loss to RUN.jsonl.
train() {
  exec "$python" "$root/examples/train_gpt.py" "runs/$1" --losses "$1.jsonl" --steps 130 \
    --every "30 steps" --layers 2 --batch 12
}
printf '$ train_gpt.py runs/whole --steps 130 --every "30 steps"\n'
(train whole) >whole.log 2>&1 &
whole=$!
printf '$ train_gpt.py runs/gpt --steps 130 --every "30 steps" &    # killed\n'
(train gpt) >gpt.log 2>&1 &
killed=$!
lines() { if [ -f gpt.jsonl ]; then wc -l <gpt.jsonl; else echo 0; fi; }
# Waits until the job has made some steps after one that was saved.
until [ "$(lines)" -ge 75 ] && compgen -G 'runs/gpt/step-*/manifest.json' >/dev/null; do
  kill -0 "$killed" 2>/dev/null || { cat gpt.log >&2; exit 1; }
  sleep 0.05
done
kill -9 "$killed"
wait "$killed" 2>/dev/null || true
at=$(lines)
printf '$ kill -9 %d\n$ train_gpt.py runs/gpt --steps 130 --every "30 steps"\n\n' "$killed"
(train gpt) >gpt.log 2>&1 || { cat gpt.log >&2; exit 1; }
wait "$whole" || { cat whole.log >&2; exit 1; }
python3 "$root/scripts/draw_losses.py" whole.jsonl gpt.jsonl "$at"

scene "Elsewhere: the same run goes on with 2 processes instead of 1"
printf '$ torchrun --nproc-per-node 2 train_gpt.py runs/gpt --steps 160\n\n'
"$python" -m torch.distributed.run --nproc-per-node 2 "$root/examples/train_gpt.py" runs/gpt \
  --steps 160 --every "30 steps" --layers 2 --batch 12 >two.log 2>&1 || { cat two.log >&2; exit 1; }
grep -E '^(holdfast|step)' two.log
grep -q 'resumed after step 129' two.log || { cat two.log >&2; exit 1; }

scene "Recover: a worker is killed in its update, and the job goes on in seconds, bit for bit"
# Trains as train_gpt.py does. With RUN.killed missing, rank 1 dies in its update number DIES_IN.
cat >unlucky.py <<'PYTHON'
import os, runpy, signal, sys
from pathlib import Path
from torch.optim import adam
mark, updates, update = Path(sys.argv[2] + ".killed"), [], adam.adam
def die_once(*arguments, **options):
    updates.append(1)
    if len(updates) == int(os.environ["DIES_IN"]) and os.environ["RANK"] == "1" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    update(*arguments, **options)
adam.adam = die_once
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
PYTHON
export HOLDFAST_PYTHON=$python
# launch RUN COMMENT OPTION...: trains with 3 ranks, in the background of the other run.
launch() {
  local run=$1 comment=$2
  shift 2
  local words="$*"
  printf '$ holdfast launch -n 3 train_gpt.py %s %s%s\n' "$run" "${words/10 steps/\"10 steps\"}" "$comment"
  "$bin/holdfast" launch -n 3 unlucky.py "$root/examples/train_gpt.py" "$run" "$@" \
    --batch 12 >"$run.log" 2>&1 &
}
# compare_with_calm RUNG CALM UNLUCKY OPTION...: rank 1 dies in one of two runs, and comes back from RUNG.
compare_with_calm() {
  local rung=$1 runs=("$2" "$3") calm unlucky
  shift 3
  touch "${runs[0]}.killed"
  launch "${runs[0]}" '' "$@"
  calm=$!
  launch "${runs[1]}" '    # rank 1 is killed' "$@"
  unlucky=$!
  wait "$unlucky" || { cat "${runs[1]}.log" >&2; exit 1; }
  wait "$calm" || { cat "${runs[0]}.log" >&2; exit 1; }
  echo
  grep -E '^holdfast: (rank|generation|step)' "${runs[1]}.log"
  grep -q "goes on after .*: $rung, exact" "${runs[1]}.log" || { cat "${runs[1]}.log" >&2; exit 1; }
  echo
  show holdfast diff "${runs[0]}" "${runs[1]}"
}
DIES_IN=40 compare_with_calm replica runs/calm runs/unlucky --steps 60 --layers 2

scene "Replay: a pipeline stage without a replica is killed, and makes its steps again alone"
DIES_IN=18 compare_with_calm messages runs/stages runs/killed --steps 30 --pp 3 --layers 3 --every "10 steps"

scene "Cost: how long training waits for a save"
printf '$ save_cost.py saves\n\n'
"$python" "$root/examples/save_cost.py" saves

scene "Crash: a job is killed with -9 in the middle of a save"
# show_exit CODE COMMAND...: like show, for a command that must end with this exit code.
show_exit() {
  local expected=$1 code=0
  shift
  show "$@" || code=$?
  printf '(exit code %d)\n' "$code"
  [ "$code" = "$expected" ] || { echo "demo: exit code $code; expected $expected" >&2; exit 1; }
}
show save_loop runs/demo 2 192
printf '\n$ save_loop runs/demo 1000 192 &    # killed in its next save\n\n'
"$bin/save_loop" runs/demo 1000 192 >loop.log 2>&1 &
loop=$!
# A save is in progress once its attempt folder has a shard.
for _ in $(seq 2000); do
  compgen -G 'runs/demo/step-*.tmp/rank-*.safetensors' >/dev/null && break
  kill -0 "$loop" 2>/dev/null || break
  sleep 0.005
done
kill -9 "$loop" 2>/dev/null || true
wait "$loop" 2>/dev/null || true
# The kill must have interrupted the save; otherwise the scene shows nothing.
compgen -G 'runs/demo/step-*.tmp' >/dev/null || { cat loop.log >&2; exit 1; }
show holdfast ls runs/demo

scene "Verify: every byte of every step, then one flipped bit is found"
show holdfast verify runs/demo
newest=$(ls -d runs/demo/step-* | grep -v '\.tmp$' | tail -n 1)
step=runs/demo@$((10#${newest##*/step-}))
echo
show holdfast inject "$step" --in-place --bits 30 --seed 7 --checksums raw
echo
show_exit 3 holdfast verify runs/demo

scene "Restore: the damage is found while reading, and the step before is restored"
show save_loop runs/demo 0 192

scene "Repair: the seal of the tensor tells which bit it was"
show holdfast repair "$step"
echo
show holdfast verify runs/demo

scene "Resize: a training changes TP x PP x DP while it runs, and every tensor keeps its bits"
export HOLDFAST_PYTHON=$python
printf '$ holdfast launch -n 4 elastic_gpt.py runs/elastic tp=2,dp=2 &\n\n'
"$python" -m holdfast.launch -n 4 "$root/examples/elastic_gpt.py" runs/elastic tp=2,dp=2 \
  --steps 100000 >elastic.log 2>&1 &
elastic=$!
# lives N: waits for the first step after N configurations, or says what went wrong.
lives() {
  until [ "$(grep -oE 'tp=[0-9,a-z=]+  loss' elastic.log | uniq | wc -l)" -gt "$1" ]; do
    kill -0 "$elastic" 2>/dev/null || { cat elastic.log >&2; exit 1; }
    sleep 0.1
  done
}
lives 0
show holdfast resize runs/elastic --to dp=3
lives 1
echo
show holdfast resize runs/elastic --to tp=2,dp=2
lives 2
kill -TERM "$elastic"
wait "$elastic" || [ $? = 143 ] || { cat elastic.log >&2; exit 1; }
echo
grep -E 'loss|on workers|stopped after' elastic.log | tail -n 12

echo
print_next "make test      # all quick tests, on the build that is there now"
