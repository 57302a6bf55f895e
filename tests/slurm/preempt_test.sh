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
skip() { echo "skipped: $*"; exit 0; }
die() {
  echo "preempt_test: $*" >&2
  tail -n 30 "$work"/*.log "$work"/job-*.out >&2 || true
  exit 1
}
export PATH=$PATH:/usr/sbin
for program in munged slurmctld slurmd sbatch srun scontrol scancel squeue; do
  command -v $program >/dev/null || skip "there is no $program"
done
[[ $(id -u) == 0 ]] || skip "slurmd starts jobs for users, and only root may do so"

work=$(mktemp -d)
chmod 755 "$work"  # the daemons refuse folders with other permissions
started=()
clean_up() {
  for ((i = ${#started[@]} - 1; i >= 0; --i)); do kill "${started[i]}" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT
start() {
  "$@" >>"$work/$(basename "$1").log" 2>&1 &
  started+=($!)
}
# until_true SECONDS WHAT COMMAND...: repeats the command until it succeeds.
until_true() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || die "$what: did not come in time"
    sleep 0.1
  done
}

free_ports() {
  python3 - "$1" <<'PYTHON'
import socket, sys
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for one in sockets:
    one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in sockets))
PYTHON
}
read -r port1 port2 port3 port4 < <(free_ports 4)

install -d -m 700 "$work/munge" "$work/spool"
head -c 128 /dev/urandom >"$work/munge/key"
chmod 400 "$work/munge/key"
start munged --foreground --force --key-file "$work/munge/key" --socket "$work/munge.socket" \
  --pid-file "$work/munge/pid" --log-file "$work/munge/log" --seed-file "$work/munge/seed"
until_true 10 munged test -S "$work/munge.socket"

host=$(hostname -s)
cat >"$work/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$work/munge.socket
StateSaveLocation=$work/spool
SlurmdSpoolDir=$work/spool/%n
SlurmctldPidFile=$work/spool/slurmctld.pid
SlurmdPidFile=$work/spool/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=60
JobRequeue=1
NodeName=first NodeHostname=$host NodeAddr=127.0.0.1 Port=$port2 CPUs=1 State=UNKNOWN
NodeName=second NodeHostname=$host NodeAddr=127.0.0.1 Port=$port3 CPUs=1 State=UNKNOWN
PartitionName=all Nodes=first,second Default=YES State=UP
CONF
export SLURM_CONF=$work/slurm.conf
start slurmctld -D
until_true 20 slurmctld scontrol ping
for node in first second; do
  start slurmd -D -N $node
done
two_idle() { [[ $(sinfo -h -N -t idle -o %N | wc -l) == 2 ]]; }
if ! (until_true 30 "two nodes" two_idle) 2>/dev/null; then
  skip "slurmd does not run here: $(tail -n 1 "$work/slurmd.log")"
fi

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
