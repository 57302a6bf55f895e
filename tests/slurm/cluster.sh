# A Slurm of its own, with two virtual nodes on this machine, for the tests that source this file. They
# set `build`, the build folder, before. Needs root, slurm and munge; without them, the test is skipped.
#
# Sets: work (a folder that is removed at the end), port4 (a free port), build. Functions: die, until_true,
# lose_node.
skip() { echo "skipped: $*"; exit 0; }
die() {
  echo "$(basename "$0"): $*" >&2
  tail -n 60 "$work"/*.log "$work"/job-*.out >&2 || true
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
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=first,second Default=YES State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=first,second State=UP PriorityTier=2 PreemptMode=OFF
CONF
export SLURM_CONF=$work/slurm.conf
start slurmctld -D
until_true 20 slurmctld scontrol ping
for node in first second; do
  start slurmd -D -N $node
done
two_idle() { [[ $(sinfo -h -N -t idle -o %N | sort -u | wc -l) == 2 ]]; }
if ! (until_true 30 "two nodes" two_idle) 2>/dev/null; then
  skip "slurmd does not run here: $(tail -n 1 "$work/slurmd.log")"
fi

# lose_node second JOB: kills all that runs on the second node, and its daemon, which is the newest one.
lose_node() {
  local daemon=${started[-1]} pid
  for pid in $(pgrep -P "$daemon") $(pgrep -f "$work/$2 "); do
    if [[ $(cat "/proc/$pid/comm" 2>/dev/null) == slurmstepd ]] ||
      tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -qx SLURM_NODEID=1; then
      kill -9 "$pid" 2>/dev/null || true
    fi
  done
  kill -9 "$daemon"
  scontrol update NodeName="$1" State=DOWN Reason="it is lost"
}
