#!/usr/bin/env bash
# Runs make test's suite, then the suites that make test leaves out because they take too long.
# Continues after a failure, and names at the end what failed.
#
#   scripts/test-all.sh [SUITE ...]     only these, in this order: scripts/test-all.sh mpi leaks
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

addresses() {
  scripts/build.sh asan
  ctest --preset asan -j "$jobs"
}

# The C++ tests that HOLDFAST_LONG=1 makes longer; uses the build of scripts/test.sh.
long_cpp() { HOLDFAST_LONG=1 ctest --preset check -j "$jobs" -R 'ConformanceTest|FixturesTest|Hdf5|RandomFlips|Damaged\.|Crash\.|SchedulesTest|Gigabyte|NoMechanismExistsTwiceAgain'; }

# Exchanges between network namespaces, and with states of 2 GB. One after the other, because each
# takes several GB of memory.
long_exchanges() {
  HOLDFAST_LONG=1 ctest --preset check -j 1 -R '(ExchangeHostsTest|LargeExchangeTest)'
}

leaks() { ctest --test-dir build/asan --output-on-failure -L leaks; }

# Ranks that mpirun starts, with each level of threads. Uses the build of scripts/test.sh.
mpi() {
  if ! command -v mpirun >/dev/null || ! command -v mpicxx >/dev/null; then
    echo "skipped: there is no mpirun, or no mpicxx" >&2
    return
  fi
  scripts/build.sh check mpi_ranks
  local level
  for level in multiple serialized funneled; do
    timeout -k 10 600 mpirun -n 8 --oversubscribe --allow-run-as-root \
      build/check/tests/mpi_ranks "$level"
  done
}

# Also compiles the benchmarks, which no other suite does.
release() {
  scripts/build.sh release all holdfast_bench
  HOLDFAST_LONG=1 PYTHONPATH=$PWD/build/release/python .venv/bin/python -m pytest -q
}

# Uses the release build that the suite before has made.
kills() {
  HOLDFAST_KILLS=${HOLDFAST_KILLS:-300} HOLDFAST_RANK_KILLS=${HOLDFAST_RANK_KILLS:-50} \
    HOLDFAST_RECOVERIES=${HOLDFAST_RECOVERIES:-200} \
    HOLDFAST_COMBINATIONS=${HOLDFAST_COMBINATIONS:-25} \
    PYTHONPATH=$PWD/build/release/python .venv/bin/python -m pytest -q \
    python/tests/test_kill.py python/tests/torch/test_kill_ranks.py \
    python/tests/torch/test_many_kills.py python/tests/torch/test_combinations.py
}

train_cpp() { tests/examples/train_cpp_test.sh release; }

slurm() {
  tests/slurm/preempt_test.sh build/release
  tests/slurm/examples_test.sh build/release
  tests/slurm/launch_test.sh build/release
  tests/slurm/resize_test.sh build/release
}

newcomer() { tests/scripts/newcomer_test.sh; }

# Uses the release build, with the packages that the adapters are for.
adapters() {
  local packages=.cache/adapters
  if ! cmp -s scripts/requirements-all.txt $packages/requirements-all.txt; then
    rm -rf $packages
    # shellcheck disable=SC2086 # several options
    .venv/bin/python -m pip install --disable-pip-version-check -q --no-deps \
      --target $packages ${HOLDFAST_PIP_OPTIONS:-} -r scripts/requirements-all.txt
    cp scripts/requirements-all.txt $packages/
  fi
  HF_HUB_OFFLINE=1 PYTHONPATH=$PWD/build/release/python:$PWD/$packages \
    .venv/bin/python -m pytest -q python/tests/adapters
}

# Uses the build of make test. A framework that cannot be installed is skipped by name.
tensorflow() {
  local python
  if ! python=$(scripts/foreign_environment.sh tensorflow); then
    echo "skipped: TensorFlow could not be installed" >&2
    return
  fi
  export HOLDFAST_TENSORFLOW_PYTHON=$python
  build/check/tests/layer3_test --gtest_filter='*RealTensorFlow*'
  PYTHONPATH=$PWD/build/check/python \
    .venv/bin/python -m pytest -q python/tests/test_tensorflow_files.py python/tests/test_mount.py \
    -k tensorflow
}

chainer() {
  local python
  if ! python=$(scripts/foreign_environment.sh chainer); then
    echo "skipped: Chainer could not be installed" >&2
    return
  fi
  HOLDFAST_CHAINER_PYTHON=$python \
    build/check/tests/layer4_test --gtest_filter='*RealChainer*'
}

# What the messages on folders of other tools tell users to do, done. Uses the build of make test.
orbax() { follow_hint orbax HOLDFAST_ORBAX_PYTHON; }
deepspeed() { follow_hint deepspeed HOLDFAST_DEEPSPEED_PYTHON; }

follow_hint() { # NAME VARIABLE
  local python
  if ! python=$(scripts/foreign_environment.sh "$1"); then
    echo "skipped: $1 could not be installed" >&2
    return
  fi
  env "$2=$python" PYTHONPATH="$PWD/build/check/python" \
    .venv/bin/python -m pytest -q python/tests/test_foreign_folders.py -k "$1"
}

# The same plans with DDP and with Horovod, which is compiled here. Uses the build of make test.
horovod() {
  if ! scripts/rivals.sh horovod; then
    echo "skipped: Horovod could not be compiled" >&2
    return
  fi
  HOLDFAST_LONG=1 PYTHONPATH=$PWD/build/check/python \
    .venv/bin/python -m pytest -q python/tests/test_corruption_study.py
}

threads() {
  scripts/build.sh tsan
  ctest --preset tsan -j "$jobs"
}

tidy() {
  scripts/build.sh tidy
  scripts/build.sh tidy all_verify_interface_header_sets
}

# Each header alone, without the precompiled ones: it includes all that it uses.
headers() {
  find holdfast -name '*.h' ! -name '*testing.h' ! -path 'holdfast/mpi/*' -print0 |
    xargs -0 -P "$jobs" -I HEADER bash -c 'echo "#include \"HEADER\"" |
      ${CXX:-g++} -std=c++20 -Wall -Wextra -I. -fsyntax-only -x c++ - || { echo "HEADER"; exit 1; }'
}

# GCC, one unit for each source and no precompiled headers: each file includes all that it uses.
alone() {
  cmake --preset alone
  cmake --build build/alone
}

# Clang 19 says which header each file should include by itself for what it uses.
includes() {
  if ! command -v clang++-19 >/dev/null || ! command -v clang-tidy-19 >/dev/null; then
    echo "skipped: there is no clang++-19, or no clang-tidy-19" >&2
    return
  fi
  cmake --preset includes
  cmake --build build/includes
}

failed=()
functions="headers alone includes long_cpp long_exchanges mpi addresses leaks release kills train_cpp slurm newcomer adapters tensorflow chainer orbax deepspeed horovod threads tidy"
suites="scripts/test.sh $functions scripts/fuzz.sh scripts/cross.sh"
for suite in "$@"; do
  if [[ " $suites " != *" $suite "* ]]; then
    echo "test-all.sh: no suite $suite; expected one of $suites" >&2
    exit 2
  fi
done
if [[ $# == 0 ]]; then set -- $suites; fi
for suite in "$@"; do
  echo "==== $suite"
  # Runs in a shell of its own, because set -e does not stop a function inside a condition.
  bash -c "set -euo pipefail; $(declare -f $functions follow_hint); jobs=$jobs; $suite" ||
    failed+=("$suite")
done
if [[ ${#failed[@]} != 0 ]]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
if [[ -e build/test-count.txt ]]; then tail -n 1 build/test-count.txt; fi
