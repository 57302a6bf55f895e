#!/usr/bin/env bash
# What Holdfast does, shown on this machine. One scene a capability.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
echo "building..."
scripts/build.sh release >build/demo-build.log 2>&1 || { cat build/demo-build.log >&2; exit 1; }

scene() { printf '\n== %s\n\n' "$1"; }
# Shows the command as a person would type it, then runs it.
show() {
  printf '$ %s\n\n' "$*"
  "build/release/bin/$1" "${@:2}"
}

scene "Resize: a 6.7B model on 4 hosts of 4 GPUs goes from 2 to 4 pipeline stages"
show holdfast plan --model tenplex-6.7b --from tp=4,pp=2,dp=1 --to tp=4,pp=4,dp=1 \
  --hosts 4x4 --place

scene "Shrink: which devices to give up so that nothing has to move"
show holdfast plan --model tenplex-6.7b --from tp=4,pp=2,dp=2 --to tp=4,pp=2,dp=1 \
  --hosts 4x4 --place
