#!/usr/bin/env bash
# Compiles Elastic Horovod into .cache/horovod, for bench/recovery_bench.py and for the study of flipped
# bits (study/corruption). It uses the torch of .venv, or of the Python that HOLDFAST_PYTHON names.
# Horovod 0.28.1 is older than this torch, so it is compiled with C++20, which torch's headers need, with
# setuptools as they were in its time, and with the Gloo that comes with it.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.28.1
place=$PWD/.cache/horovod
python=${HOLDFAST_PYTHON:-$PWD/.venv/bin/python}
if [[ $(cat "$place/built" 2>/dev/null) == "$version" ]]; then exit 0; fi

rm -rf "$place"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2086 # several options
install() { "$python" -m pip install --disable-pip-version-check -q ${HOLDFAST_PIP_OPTIONS:-} "$@"; }
install --no-deps --target "$place" cloudpickle packaging psutil pyyaml
install --no-deps --target "$work/tools" 'setuptools<81' wheel packaging cffi pycparser 'cmake<3.28'
export PYTHONPATH=$work/tools PATH=$work/tools/bin:$PATH
# shellcheck disable=SC2086 # several options
"$python" -m pip download --disable-pip-version-check -q --no-deps --no-build-isolation \
  ${HOLDFAST_PIP_OPTIONS:-} --no-binary :all: -d "$work" horovod==$version
tar -xzf "$work/horovod-$version.tar.gz" -C "$work"
cd "$work/horovod-$version"
sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 20)/' \
  CMakeLists.txt horovod/torch/CMakeLists.txt
HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 \
  HOROVOD_WITHOUT_MXNET=1 install --no-deps --no-build-isolation --target "$place" .
echo $version >"$place/built"
