#!/usr/bin/env bash
# Builds examples/cpp/heat with an installed Holdfast and runs it with mpirun: killed on 4 ranks,
# continued on 3, asked to stop there, and finished on 2; and undisturbed on 1, 2 and 4. All must print
# the same lines and save the same temperatures, bit for bit.
#
#   tests/examples/heat_test.sh PREFIX COMPILER
#
# Exits with 77, which CTest counts as skipped, if there is no mpirun or Holdfast has no MPI.
set -euo pipefail
cd "$(dirname "$0")/../.."
prefix=$1
example=$PWD/examples/cpp/heat
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
die() { echo "heat_test: $*" >&2; tail -n 30 ./*.log >&2; exit 1; }
skip() { echo "skipped: $*"; exit 77; }

command -v mpirun >/dev/null || skip "there is no mpirun"
if ! cmake -S "$example" -B build -G Ninja -D CMAKE_PREFIX_PATH="$prefix" -D CMAKE_BUILD_TYPE=Release \
     -D CMAKE_CXX_COMPILER="$2" >build.log 2>&1; then
  grep -q "component mpi: this Holdfast was built" build.log && skip "Holdfast was built without MPI"
  die "cmake: failed"
fi
cmake --build build >>build.log 2>&1 || die "cmake --build: failed"

# Open MPI is told to start as root, and more ranks than there are cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
# begin RANKS FILE: starts the program in the background. It would take hours to end by itself.
begin() {
  : >"$2"
  mpirun -n "$1" "$work/build/heat" run 100000000 >>"$2" 2>>run.log &
  job=$!
}
# await COMMAND...: waits until the command succeeds, while the program runs.
await() {
  until "$@"; do
    kill -0 $job 2>/dev/null || die "heat: ended by itself"
    sleep 0.01
  done
}
has_saved() { compgen -G "run/step-????????" >/dev/null; }
# Waits until the program ends, and puts its exit code into $code.
await_end() {
  code=0
  wait $job || code=$?
}
# The number of the step in the first, or in the last, line of a file.
first_step() { head -n 1 "$1" | cut -d ' ' -f 1; }
last_step() { tail -n 1 "$1" | cut -d ' ' -f 1; }

begin 4 killed.txt
await has_saved
# shellcheck disable=SC2046 # several processes
kill -KILL $(pgrep -f "^$work/build/heat run ")
await_end
[[ $code != 0 ]] || die "mpirun: exit code 0 after its ranks were killed"
# The kill may have cut the last line.
while IFS= read -r line; do echo "$line"; done <killed.txt >before.txt
begin 3 stopped.txt
await test -s stopped.txt
kill -USR1 $job
await_end
[[ $code == 143 ]] || die "mpirun: exit code $code after it was asked to stop; expected 143"
(($(first_step stopped.txt) > 0)) || die "3 ranks: began anew; expected the newest step of 4"

# The steps between the last save and the kill are made twice. The program saves after every 50 steps,
# so the last step is saved.
furthest=$(sort -n before.txt stopped.txt | tail -n 1)
steps=$(((${furthest%% *} / 50 + 2) * 50))
run() { mpirun -n "$1" build/heat "$2" $steps >"$3" 2>>"$2.log" || die "heat on $1 ranks: failed"; }
run 2 run finished.txt
(($(first_step finished.txt) == $(last_step stopped.txt) + 1)) ||
  die "2 ranks: began with step $(first_step finished.txt); expected the one after 3 ranks stopped"
sort -n -u before.txt stopped.txt finished.txt >disturbed.txt

for ranks in 1 2 4; do
  run $ranks whole-$ranks whole-$ranks.txt
  cmp whole-$ranks.txt disturbed.txt || die "the undisturbed $ranks ranks print other lines"
  "$prefix/bin/holdfast" diff whole-$ranks run >diff.log ||
    die "the undisturbed $ranks ranks have saved other temperatures"
done
(($(wc -l <disturbed.txt) == steps)) || die "disturbed.txt: not $steps lines"
echo "killed on 4 ranks, stopped on 3, finished on 2: $steps steps as on 1, 2 and 4, bit for bit"
