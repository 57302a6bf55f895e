#!/usr/bin/env bash
# Builds device_probe.cpp and runs device_check.py on this machine's GPU: bench/device/run.sh [carried]
#
# Needs g++, CMake, Ninja or make, fmt, nlohmann-json and a Python with torch. ISA-L and xxHash are
# also looked for in the folder `carried` (default: .cache/carried), which pack.sh fills on a machine
# that has them.
set -euo pipefail
cd "$(dirname "$0")/../.."
carried=.cache/carried
generator=()
mkdir -p build
if command -v ninja >/dev/null; then generator=(-G Ninja); fi
cmake -S bench/device -B build/device "${generator[@]}" -D CMAKE_BUILD_TYPE=Release \
  -D CMAKE_PREFIX_PATH="$carried" -D CMAKE_BUILD_RPATH="$carried/lib" >build/device.log 2>&1 ||
  { cat build/device.log; exit 1; }
cmake --build build/device --target device_probe -j "$(nproc)" 2>&1 | tail -n 25
python3 bench/device/device_check.py build/device/libdevice_probe.so "${@:2}"
