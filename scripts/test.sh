#!/usr/bin/env bash
# The tests that every change must pass: C++ with sanitizers and asserts, Python on the
# release build. The last line is the count: "N passed, M failed". Both kinds run even if the
# first fails.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
cpp=$PWD/build/asan/ctest.xml
python=$PWD/build/release/pytest.xml
rm -f "$cpp" "$python" build/test-count.txt

echo "== C++ tests, with address and undefined-behaviour sanitizers"
scripts/build.sh asan
ctest --preset asan -j "$jobs" --output-junit "$cpp" || true

echo "== Python tests, on the release build"
scripts/build.sh release
PYTHONPATH=$PWD/build/release/python .venv/bin/python -m pytest -q --junit-xml="$python" || true

status=0
.venv/bin/python scripts/count_tests.py "$cpp" "$python" >build/test-count.txt || status=$?
cat build/test-count.txt
exit $status
