#!/usr/bin/env bash
# Everything that make test leaves out for time. Goes on after a failure and names what
# failed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

addresses() {
  scripts/build.sh asan
  ctest --preset asan -j "$jobs"
}

leaks() { ctest --test-dir build/asan --output-on-failure -L leaks; }

release() {
  scripts/build.sh release holdfast_python_stub holdfast_program
  PYTHONPATH=$PWD/build/release/python .venv/bin/python -m pytest -q
}

# On the release build that was just made.
kills() {
  HOLDFAST_KILLS=${HOLDFAST_KILLS:-300} HOLDFAST_RANK_KILLS=${HOLDFAST_RANK_KILLS:-50} \
    PYTHONPATH=$PWD/build/release/python .venv/bin/python -m pytest -q \
    python/tests/test_kill.py python/tests/torch/test_kill_ranks.py
}

train_cpp() { tests/examples/train_cpp_test.sh release; }

slurm() { tests/slurm/preempt_test.sh build/release; }

# On the release build, with the packages that it adapts to.
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

threads() {
  scripts/build.sh tsan
  ctest --preset tsan -j "$jobs"
}

tidy() {
  scripts/build.sh tidy
  scripts/build.sh tidy all_verify_interface_header_sets
}

failed=()
suites="addresses leaks release kills train_cpp slurm adapters threads tidy"
for suite in scripts/test.sh $suites scripts/fuzz.sh scripts/cross.sh; do
  echo "==== $suite"
  # In a shell of its own: inside a condition, set -e would not stop a function.
  bash -c "set -euo pipefail; $(declare -f $suites); jobs=$jobs; $suite" ||
    failed+=("$suite")
done
if [[ ${#failed[@]} != 0 ]]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
tail -n 1 build/test-count.txt
