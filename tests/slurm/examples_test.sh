#!/usr/bin/env bash
# Runs the scripts of examples/slurm on a Slurm of its own and stops their jobs in all the ways that
# Slurm has: a signal to the batch shell, a signal to the steps, scancel, the time limit, and a
# preemption. Each time every rank saves. A job that goes on must end with the losses of an undisturbed
# job, bit for bit.
#
#   tests/slurm/examples_test.sh BUILD      e.g. build/release; needs root, slurm and munge
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$PWD/$1
. tests/slurm/cluster.sh
scripts=$PWD/examples/slurm
gpt=$PWD/examples/train_gpt.py
export PATH=$PWD/.venv/bin:$PATH PYTHONPATH=$build/python OMP_NUM_THREADS=1
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$port4 PET_LOCAL_ADDR=127.0.0.1

# submit SCRIPT NAME STEPS OPTIONS...: queues a training; prints the number of its job.
submit() {
  local script=$1 name=$2 steps=$3 python=python
  shift 3
  if [[ $script == torchrun ]]; then python=; fi
  # shellcheck disable=SC2086 # empty for torchrun
  sbatch --parsable --job-name "$name" --output "$work/job-$name.out" "$@" \
    "$scripts/$script.sbatch" $python "$gpt" "$work/$name" --losses "$work/$name.jsonl" \
    --steps "$steps" --every "100000 steps" --layers 2 --width 32 --context 32 --batch 8
}
state() { squeue -h -j "$1" -o %T 2>/dev/null || true; }
is_pending() { [[ $(state "$1") == PENDING ]]; }
is_over() { [[ -z $(state "$1") || $(state "$1") == @(COMPLETED|CANCELLED|FAILED|TIMEOUT) ]]; }
has_losses() { [[ -f $work/$1.jsonl ]] && (($(wc -l <"$work/$1.jsonl") >= $2)); }
newest() { "$build/bin/holdfast" ls "$work/$1" --json | python -c \
  'import json, sys; print(max(step["step"] for run in json.load(sys.stdin)["runs"] for step in run["steps"]))'; }
# A requeued job would wait for two minutes in Slurm. This starts it at once.
go_on() {
  until_true 120 "job $1 to be queued again" is_pending "$1"
  sleep 2  # a node refuses to start a job in the second in which it has ended there
  scontrol update JobId="$1" StartTime=now
}
# Fails unless the step at which the ranks stopped is the newest in the run.
check_saved() {
  local last
  last=$(sed -n 's/^stopped after step \([0-9]*\), which is saved: .*/\1/p' "$work/job-$1.out" | tail -n 1)
  [[ -n $last && $(newest "$1") == "$last" ]] ||
    die "$1: the newest step is $(newest "$1"); expected that of the stop, ${last:-which is missing}"
}
check_same() { cmp "$work/whole.jsonl" "$work/$1.jsonl" || die "$1: the losses differ"; }

job=$(submit train whole 240)
until_true 200 "the end of the undisturbed job" is_over "$job"
(($(wc -l <"$work/whole.jsonl") == 240)) || die "whole: $(wc -l <"$work/whole.jsonl") losses"

for script in train torchrun; do
  job=$(submit $script "$script-batch" 240)
  until_true 100 "losses of $script" has_losses "$script-batch" 40
  scancel --batch --signal=USR1 "$job"  # what Slurm sends before the time limit
  go_on "$job"
  check_saved "$script-batch"
  until_true 200 "the end of $script" is_over "$job"
  check_same "$script-batch"
  echo "$script: a signal to the batch shell: saved, queued again, and the same losses"
done

job=$(submit train step 240)
until_true 100 "losses" has_losses step 40
scancel --signal=TERM "$job"
go_on "$job"
check_saved step
until_true 200 "the end of the stopped job" is_over "$job"
check_same step
echo "train: a signal to the steps: saved, queued again, and the same losses"

job=$(submit train cancelled 100000)
until_true 100 "losses" has_losses cancelled 40
scancel "$job"
until_true 100 "the end after scancel" is_over "$job"
check_saved cancelled
is_pending "$job" && die "cancelled: the job is queued again"
echo "train: scancel: saved, and not queued again"

for script in train torchrun; do
  name=$script-preempted
  job=$(submit $script "$name" 240)
  until_true 100 "losses of $name" has_losses "$name" 40
  urgent=$(sbatch --parsable --partition urgent --nodes 2 --output /dev/null --wrap "sleep 1")
  until_true 100 "the urgent job" is_over "$urgent"
  go_on "$job"
  check_saved "$name"
  until_true 200 "the end of $name" is_over "$job"
  check_same "$name"
  echo "$script: a preemption: saved, queued again, and the same losses"
done

job=$(submit train limited 1000000 --time=1 --signal=B:USR1@40)
until_true 60 "losses" has_losses limited 5
until_true 150 "the job to be queued again before its time limit" is_pending "$job"
check_saved limited
scancel "$job"
echo "train: the time limit: saved before it, and queued again"
