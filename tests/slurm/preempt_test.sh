#!/usr/bin/env bash
# Starts its own Slurm with two virtual nodes, and stops a job there twice: first its processes get
# SIGTERM, as in a preemption, then the operator requeues it. Both times every rank saves and exits
# with 143, and the job is queued again and continues. Its losses must equal those of an undisturbed
# job bit for bit.
#
#   tests/slurm/preempt_test.sh BUILD      e.g. build/release; needs root, slurm and munge
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$PWD/$1
. tests/slurm/cluster.sh

# $1 is the name of the job. Its run directory and its file of losses have this name.
cat >"$work/job.sh" <<JOB
#!/usr/bin/env bash
#SBATCH --nodes=2 --ntasks-per-node=1 --requeue --open-mode=append
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$port4 WORLD_SIZE=2 LOCAL_RANK=0 OMP_NUM_THREADS=1
export PYTHONPATH=$build/python
srun --kill-on-bad-exit=0 bash -c 'RANK=\$SLURM_PROCID exec $PWD/.venv/bin/python \
  $PWD/examples/train_gpt.py $work/'\$1' --losses $work/'\$1'.jsonl --steps 240 \
  --every "100 steps" --layers 2 --width 32 --context 32 --batch 8'
code=\$?
echo "\$1: exit code \$code, restart \${SLURM_RESTART_COUNT:-0}"
[[ \$code == 143 ]] && scontrol requeue "\$SLURM_JOB_ID"
exit \$code
JOB
submit() { sbatch --parsable --job-name "$1" --output "$work/job-$1.out" "$work/job.sh" "$1"; }
lines() { [[ -f $work/$1.jsonl ]] && (($(wc -l <"$work/$1.jsonl") >= $2)); }
said() { grep -q "$2" "$work/job-$1.out"; }
pending() { [[ $(squeue -h -j "$1" -o %T) == PENDING ]]; }
# A requeued job would wait for two minutes in Slurm. This starts it at once.
go_on() {
  until_true 90 "job $1 to be queued again" pending "$1"
  sleep 2  # a node refuses to start a job in the second in which it has ended there
  scontrol update JobId="$1" StartTime=now
}

cd "$work"
job=$(submit whole)
until_true 200 "the end of the undisturbed job" said whole "exit code 0, restart 0"

job=$(submit stopped)
until_true 100 "the first losses of the job" lines stopped 40
scancel --signal=TERM "$job"  # sends SIGTERM to the job's processes, as a preemption does
until_true 100 "the first stop of the job" said stopped "exit code 143, restart 0"
go_on "$job"
seen=$(wc -l <"$work/stopped.jsonl")
until_true 100 "more losses of the job" lines stopped $((seen + 40))
scontrol requeue "$job"
go_on "$job"
until_true 100 "the end of the job" said stopped "exit code 0, restart 2"

(($(wc -l <whole.jsonl) == 240)) || die "whole.jsonl: $(wc -l <whole.jsonl) losses; expected 240"
cmp whole.jsonl stopped.jsonl || die "the losses differ"
echo "stopped twice by Slurm, and 240 losses of 2 ranks are the same bit for bit"
