#!/usr/bin/env bash
# Copies what a machine with a GPU and few packages lacks into .cache/carried, for x86-64: headers,
# libraries and nanobind. all.sh builds with them there.
#
#   bench/device/pack.sh [--no-horovod] [root]
#
# Without Horovod it is some 30 MB less, and pairs.sh has one rival less.
# The Debian packages are those of this machine or, on another CPU, those that scripts/cross.sh has
# unpacked below .cache/cross/amd64. nanobind is that of .venv. What scripts/rivals.sh needs to compile
# Horovod there is kept in .cache. The headers of Python are not carried along: they must be those of the
# Python that runs there, so that machine has them (on Debian and Ubuntu: the package python3-dev).
set -euo pipefail
cd "$(dirname "$0")/../.."
with_horovod=yes
if [[ ${1:-} == --no-horovod ]]; then with_horovod=; shift; fi
root=${1:-$([[ $(uname -m) == x86_64 ]] || echo .cache/cross/amd64)}/usr
carried=.cache/carried
wheels=.cache/horovod-wheels

# What scripts/rivals.sh installs, for Python 3.12 on x86-64.
fetch_horovod() {
  local new=$wheels.new platforms=() version
  for version in 2_5 2_12 2_17 2_28; do platforms+=(--platform "manylinux_${version}_x86_64"); done
  rm -rf "$new"
  # shellcheck disable=SC2086 # several options
  .venv/bin/python -m pip download --disable-pip-version-check -q --no-deps -d "$new" \
    ${HOLDFAST_PIP_OPTIONS:-} --python-version 3.12 "${platforms[@]}" --only-binary :all: \
    cloudpickle packaging psutil pyyaml 'setuptools<81' wheel cffi pycparser 'cmake<3.28'
  # shellcheck disable=SC2086 # several options
  .venv/bin/python -m pip download --disable-pip-version-check -q --no-deps -d "$new" \
    ${HOLDFAST_PIP_OPTIONS:-} --no-build-isolation --no-binary :all: horovod==0.28.1
  mv "$new" "$wheels"
}

# The rivals of gpu_bench.py that such a machine lacks, without what they need for other work. NVIDIA's
# Resiliency Extension has no wheels for older versions of Python, so no other machine has it.
fetch_rivals() {
  # shellcheck disable=SC2086 # several options
  .venv/bin/python -m pip install --disable-pip-version-check -q --no-deps --target $carried/python \
    ${HOLDFAST_PIP_OPTIONS:-} --python-version 3.12 --platform manylinux_2_39_x86_64 --only-binary :all: \
    -r scripts/requirements-bench.txt nvidia-resiliency-ext==0.7.0
}

[[ -z $with_horovod || -d $wheels ]] || fetch_horovod
rm -rf $carried
mkdir -p $carried/include $carried/lib $carried/python
cp -r "$root"/include/isa-l* "$root"/include/xxh*.h "$root"/include/CLI $carried/include/
cp -r "$root"/include/liburing* $carried/include/
for library in isal:2 uring:2; do
  name=lib${library%:*}.so
  cp -L "$root/lib/x86_64-linux-gnu/$name.${library#*:}" $carried/lib/
  cp "$carried/lib/$name.${library#*:}" $carried/lib/$name  # a link might not be copied along
done
mkdir -p $carried/share/cmake
cp -r "$root/share/cmake/CLI11" $carried/share/cmake/
cp -r "$(.venv/bin/python -c 'import nanobind; print(list(nanobind.__path__)[0])')" $carried/python/
fetch_rivals
[[ -z $with_horovod ]] || cp -r $wheels $carried/wheels
find $carried -name __pycache__ -exec rm -r {} +
du -sh $carried
