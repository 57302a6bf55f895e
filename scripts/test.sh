#!/usr/bin/env bash
# Runs the tests that every change must pass: C++ and Python, on one build with asserts. The
# sanitizers, which double the time to compile, and the wheel, which is compiled again, are in
# test-all.sh. The last line is the count: "N passed, M failed, K skipped". The Python tests run
# even if the C++ tests fail or do not compile, and both must succeed.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
cpp=$PWD/build/check/ctest.xml
python=$PWD/build/check/pytest.xml
rm -f "$cpp" "$python" build/test-count.txt
mkdir -p build
at_once=$((jobs + 1))  # tests often wait, so one more than there are cores

# Python compiles a module when it is first imported. For torch that takes most of a minute, and here
# only one process does it, beside the C++ tests.
import_torch() {
  .venv/bin/python -c 'import torch; torch.optim.SGD([torch.zeros(1)]).step()' || true
}

cpp_status=0 python_status=0
echo "== C++ tests"
{
  scripts/build.sh check && {
    import_torch &
    ctest --preset check -j "$at_once" --output-junit "$cpp"
  }
} || cpp_status=$?
wait

echo "== Python tests"
{
  scripts/build.sh check holdfast_python_stub holdfast_program &&
    PYTHONPATH=$PWD/build/check/python .venv/bin/python -m pytest -q -n "$at_once" --dist worksteal \
      --junit-xml="$python" --ignore=python/tests/test_wheel.py
} || python_status=$?

status=0
.venv/bin/python scripts/count_tests.py "$cpp=$cpp_status" "$python=$python_status" \
  >build/test-count.txt || status=$?
if [[ ! -s build/test-count.txt ]]; then echo "0 passed, 1 failed" >build/test-count.txt; fi
echo
print_next "make demo      # what Holdfast does, scene by scene"
echo
cat build/test-count.txt
exit $status
