#!/usr/bin/env bash
# Builds everything but Python for the other CPU (x86-64 on an aarch64 machine, and the reverse),
# and runs the C++ tests of that build under QEMU.
#
# The libraries for that CPU are Debian packages, unpacked below .cache/cross: nothing is
# installed, and the machine's own package lists do not change. libcurl is left out, because it
# depends on 30 more packages. So this build also tests Holdfast without object stores.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

case $(uname -m) in
  aarch64) cpu=x86_64 debian=amd64 ;;
  x86_64) cpu=aarch64 debian=arm64 ;;
  *) echo "cross: no other CPU is known for $(uname -m)" >&2; exit 1 ;;
esac
triple=$cpu-linux-gnu
root=$PWD/.cache/cross/$debian
packages=(libfmt-dev libfmt9 nlohmann-json3-dev libxxhash-dev libisal-dev libisal2
          liburing-dev liburing2 libzstd-dev libzstd1 libcli11-dev libgtest-dev libgmock-dev librapidcheck-dev)

# Downloads and unpacks the packages, with package lists that are separate from the machine's.
fetch() {
  local state=$root.apt
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$state/deb"
  : >"$state/status"
  local apt=(apt-get -q -o "APT::Architecture=$debian" -o "APT::Architectures=$debian"
             -o "Dir::State=$state" -o "Dir::State::status=$state/status"
             -o "Dir::Cache=$state/cache" -o APT::Sandbox::User=root)
  "${apt[@]}" update
  (cd "$state/deb" && "${apt[@]}" download "${packages[@]}")
  for deb in "$state"/deb/*.deb; do dpkg -x "$deb" "$root.new"; done
  mv "$root.new" "$root"  # comes last, so that a failed download is tried again
}

# Warnings are no errors here: GCC 12 for x86-64 warns wrongly at -O3. Other builds check warnings.
build() {
  cmake -S . -B build/cross -G Ninja -D CMAKE_BUILD_TYPE=Release \
    -D CMAKE_SYSTEM_NAME=Linux -D CMAKE_SYSTEM_PROCESSOR="$cpu" \
    -D CMAKE_CXX_COMPILER="$triple-g++" -D CMAKE_LIBRARY_ARCHITECTURE="$triple" \
    -D CMAKE_FIND_ROOT_PATH="$root" -D CMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER \
    -D CMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY -D CMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY \
    -D CMAKE_FIND_ROOT_PATH_MODE_PACKAGE=ONLY -D HOLDFAST_S3=OFF -D HOLDFAST_WERROR=OFF \
    -D "CMAKE_CROSSCOMPILING_EMULATOR=qemu-$cpu;-cpu;max;-L;/usr/$triple;-E;LD_LIBRARY_PATH=$root/usr/lib/$triple" \
    -D "CMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,$root/usr/lib/$triple" >build/cross.log 2>&1 ||
    { cat build/cross.log >&2; exit 1; }
  cmake --build build/cross
}

mkdir -p build
[[ -d $root ]] || fetch
build
ctest --test-dir build/cross --output-on-failure --no-tests=error -j "$jobs" -LE project
