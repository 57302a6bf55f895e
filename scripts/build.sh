#!/usr/bin/env bash
# Configures and builds one preset: scripts/build.sh PRESET [TARGET...]
# Shows one line of progress. The full output is in build/PRESET-configure.log and
# build/PRESET-build.log, and is printed if a step fails.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
preset=$1
shift
mkdir -p build

# Makes .venv/bin/holdfast and `import holdfast` in .venv use this build, unless Holdfast was
# installed there by pip.
link_into_environment() {
  local program=.venv/bin/holdfast packages
  if [[ -e $program && ! -L $program ]]; then return; fi
  packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  ln -sfn "../../build/$preset/bin/holdfast" "$program"
  echo "$PWD/build/$preset/python" >"$packages/holdfast-build.pth"
}

show_progress configuring "build/$preset-configure.log" cmake --preset "$preset"
show_progress building "build/$preset-build.log" \
  cmake --build "build/$preset" ${1:+--target "$@"}
if [[ $preset == check && -x .venv/bin/python ]]; then link_into_environment; fi
