#!/usr/bin/env bash
# Starts its own Slurm with two virtual nodes, and a training by `holdfast launch` on both. One node is
# lost: all its processes are killed. The rank on the other node saves what is done, with a process in
# the place of the lost rank, and its launcher exits with 143. The job is queued again and continues: every step is
# made exactly once, with the losses of an undisturbed job.
#
#   tests/slurm/launch_test.sh BUILD      e.g. build/release; needs root, slurm and munge
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$PWD/$1
. tests/slurm/cluster.sh
steps=60

# $1 is the name of the job. Its run directory and its files of losses have this name.
cat >"$work/job.sh" <<JOB
#!/usr/bin/env bash
#SBATCH --nodes=2 --ntasks-per-node=1 --requeue --open-mode=append --no-kill
export PYTHONPATH=$build/python OMP_NUM_THREADS=1
srun --no-kill --kill-on-bad-exit=0 --ntasks-per-node=1 $PWD/.venv/bin/python -m holdfast.launch -n 1 \
  --at 127.0.0.1:$port4 --wait 2 $PWD/python/tests/torch/launched.py $work/\$1 $steps 0.1
code=\$?
echo "\$1: exit code \$code, restart \${SLURM_RESTART_COUNT:-0}"
# srun gives the code of the tasks that were killed with the node, and else that of the launcher.
[[ \$code == 137 || \$code == 143 ]] && scontrol requeue "\$SLURM_JOB_ID"
exit \$code
JOB
submit() { sbatch --parsable --no-kill --job-name "$1" --output "$work/job-$1.out" "$work/job.sh" "$1"; }
lines() { [[ -f $work/$1.losses.0 ]] && (($(wc -l <"$work/$1.losses.0") >= $2)); }
said() { grep -q "$2" "$work/job-$1.out"; }
pending() { [[ $(squeue -h -j "$1" -o %T) == PENDING ]]; }
losses() { cut -d, -f1-2 "$work/$1.losses.0"; }
cd "$work"
submit whole >/dev/null
until_true 200 "the end of the undisturbed job" said whole "exit code 0, restart 0"

job=$(submit lost)
until_true 200 "the first losses of the job" lines lost 10
lose_node second lost
until_true 100 "the rest of the job to save" said lost "which is saved"
until_true 100 "the end of the rest of the job" said lost "exit code 1[34][37], restart 0"
start slurmd -D -N second
sleep 1
scontrol update NodeName=second State=RESUME 2>/dev/null || true  # it may be back already
until_true 90 "job $job to be queued again" pending "$job"
sleep 2  # a node refuses to start a job in the second in which it has ended there
scontrol update JobId="$job" StartTime=now
until_true 200 "the end of the job" said lost "exit code 0, restart 1"

(($(wc -l <whole.losses.0) == steps)) || die "whole: $(wc -l <whole.losses.0) losses; expected $steps"
cmp <(losses whole) <(losses lost) || die "the losses differ, or a step was made twice"
echo "a node was lost, the rest has saved, and the requeued job has lost no step: $steps losses are the same"
