#!/usr/bin/env bash
# Installs what Holdfast is compared with, each rival in a folder of its own that .venv does not see:
#   scripts/rivals.sh [horovod|torchft]     both, if none is named
# A rival that cannot be installed is named, the other is installed all the same, and the script fails.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${HOLDFAST_PYTHON:-$PWD/.venv/bin/python} # the one whose torch they use

# shellcheck disable=SC2086 # several options
install() { "$python" -m pip install --disable-pip-version-check -q ${HOLDFAST_PIP_OPTIONS:-} "$@"; }

# Compiles Elastic Horovod into .cache/horovod, for bench/recovery_bench.py and for the study of flipped
# bits (study/corruption). Horovod 0.28.1 is older than this torch, so it is compiled with C++20, which
# torch's headers need, with setuptools as they were in its time, and with the Gloo that comes with it.
horovod() {
  local version=0.28.1 place=$PWD/.cache/horovod
  if [[ $(cat "$place/built" 2>/dev/null) == "$version" ]]; then return; fi
  rm -rf "$place"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  install --no-deps --target "$place" cloudpickle packaging psutil pyyaml
  install --no-deps --target "$work/tools" 'setuptools<81' wheel packaging cffi pycparser \
    'cmake<3.28'
  export PYTHONPATH=$work/tools PATH=$work/tools/bin:$PATH
  # shellcheck disable=SC2086 # several options
  "$python" -m pip download --disable-pip-version-check -q --no-deps --no-build-isolation \
    ${HOLDFAST_PIP_OPTIONS:-} --no-binary :all: -d "$work" horovod==$version
  tar -xzf "$work/horovod-$version.tar.gz" -C "$work"
  cd "$work/horovod-$version"
  sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 20)/' \
    CMakeLists.txt horovod/torch/CMakeLists.txt
  sed -i '1i #include <string>' horovod/common/group_table.h # GCC 13 does not include it by chance
  HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 \
    HOROVOD_WITHOUT_MXNET=1 install --no-deps --no-build-isolation --target "$place" .
  echo $version >"$place/built"
}

# Installs torchft into .cache/torchft, for bench/recovery_bench.py. PyPI has it for x86-64 only, and its
# source needs Rust packages.
torchft() {
  local list=scripts/requirements-torchft.txt place=$PWD/.cache/torchft
  if cmp -s $list "$place/requirements.txt"; then return; fi
  rm -rf "$place"
  install --no-deps --only-binary :all: --target "$place" -r $list
  cp $list "$place/requirements.txt"
}

case ${1:-} in
horovod | torchft)
  "$1"
  exit
  ;;
?*)
  echo "rivals: $1: no such rival; expected horovod or torchft" >&2
  exit 2
  ;;
esac
failed=()
for rival in horovod torchft; do
  scripts/rivals.sh $rival || failed+=("$rival")
done
if [[ ${#failed[@]} != 0 ]]; then
  echo "rivals: could not install: ${failed[*]}" >&2
  exit 1
fi
