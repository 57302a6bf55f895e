#!/usr/bin/env bash
# What Holdfast does, shown on this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh release
program=build/release/bin/holdfast
if [[ ! -x $program ]]; then
  echo "demo: this build has no command line yet; make test shows what there is" >&2
  exit 1
fi
"$program" --help
