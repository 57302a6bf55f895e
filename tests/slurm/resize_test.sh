#!/usr/bin/env bash
# Starts its own Slurm with two virtual nodes, and an elastic training on both. `holdfast resize`, called
# outside of the job, changes its configuration. Then one node is lost for good: the ranks of the other
# node go on with the configuration for so many workers, and end the training without a start from disk.
# Its losses are those of a job that was left alone, but for the rounding of other sums.
#
#   tests/slurm/resize_test.sh BUILD      e.g. build/release; needs root, slurm and munge
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$PWD/$1
. tests/slurm/cluster.sh
steps=200

# $1 is the name of the job, and of its run directory.
cat >"$work/job.sh" <<JOB
#!/usr/bin/env bash
#SBATCH --nodes=2 --ntasks-per-node=1 --no-kill
export PYTHONPATH=$build/python OMP_NUM_THREADS=1
srun --no-kill --kill-on-bad-exit=0 --ntasks-per-node=1 $PWD/.venv/bin/python -m holdfast.launch -n 2 \
  --at 127.0.0.1:$port4 --wait 10 $PWD/examples/elastic_gpt.py $work/\$1 tp=2,dp=2 --steps $steps
echo "\$1: ended"
JOB
submit() { sbatch --parsable --no-kill --job-name "$1" --output "$work/job-$1.out" "$work/job.sh" "$1"; }
said() { grep -q "$2" "$work/job-$1.out"; }
holdfast() { PYTHONPATH=$build/python PATH=$PWD/.venv/bin:$PATH "$build/bin/holdfast" "$@"; }
# "step loss" of each line that the job has printed of its steps.
losses() { sed -n 's/.* step *\([0-9]*\) .* loss \(.*\)/\1 \2/p' "$work/job-$1.out"; }


submit whole >/dev/null
until_true 400 "the end of the undisturbed job" said whole "whole: ended"

submit resized >/dev/null
until_true 200 "the first steps of the job" said resized "step *20 "
holdfast resize "$work/resized" --to dp=4 | tee "$work/resize.log"
grep -q "^tp=2,pp=1,dp=2 -> tp=1,pp=1,dp=4 on workers 0 1 2 3, after step " "$work/resize.log" || die "no change"
until_true 100 "steps as dp=4" said resized "dp=4"
lose_node second resized
until_true 100 "the ranks of the other node to go on as dp=2" said resized "tp=1,pp=1,dp=2"
until_true 200 "the end of the job" said resized "resized: ended"

losses whole >"$work/whole.losses"
losses resized >"$work/resized.losses"
awk -v steps=$steps 'NR == FNR { whole[$1] = $2; next }
  { if (seen[$1]++) exit 1; off = $2 - whole[$1]; if (off > 0.02 || off < -0.02) exit 1; ++made }
  END { if (made != steps / 10) exit 1 }' "$work/whole.losses" "$work/resized.losses" ||
  die "the losses differ, or a step was made twice: $(paste "$work/whole.losses" "$work/resized.losses")"
holdfast verify "$work/resized" | grep -q "step-00000$((steps - 1)): whole" || die "the last step is not saved"
echo "a job on two nodes changed to dp=4, lost a node and went on as dp=2: $steps steps, each made once"
