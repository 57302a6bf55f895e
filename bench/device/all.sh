#!/usr/bin/env bash
# Builds Holdfast on this machine, which has a GPU, and runs the programs of this folder, each with
# its bars: bench/device/all.sh [--out FOLDER] [PART...]
#
# Parts, in this order: seal exchange check ordering save resize logs campaign. Each writes PART.json and PART.log
# to the folder (default: build/gpu), and a summary comes last. Exits with 1 if a part fails. Two parts run
# only if they are named: crucial, which flips bit 30 alone in a ResNet-50, and pairs, which takes half an
# hour and no GPU (pairs.sh).
#
# Needs g++, CMake, fmt, nlohmann-json and a Python with its headers and torch. What else is missing is
# looked for in .cache/carried, which pack.sh fills on another machine.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=build/gpu
if [[ ${1:-} == --out ]]; then out=$2; shift 2; fi
parts=("$@")
[[ ${#parts[@]} -gt 0 ]] || parts=(seal exchange check ordering save resize logs campaign)
carried=$PWD/.cache/carried
built=$PWD/build/device
mkdir -p "$out" build
export PYTHONPATH=$built/holdfast/python:$carried/python PYTHONUNBUFFERED=1

build() {
  local generator=() python
  if command -v ninja >/dev/null; then generator=(-G Ninja); fi
  python=$(command -v python3)
  local options=(-D CMAKE_BUILD_TYPE=Release -D "CMAKE_PREFIX_PATH=$carried"
                 -D "CMAKE_BUILD_RPATH=$carried/lib" -D "Python_EXECUTABLE=$python")
  local headers
  headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))') || return
  if ! [[ -e $headers/Python.h ]]; then
    echo "Error: $headers/Python.h: no such file; expected the headers of $python, as python3-dev has them"
    return 1
  fi
  cmake -S bench/device -B "$built" "${generator[@]}" "${options[@]}" &&
    cmake --build "$built" --target device_all -j "$(nproc)"
}

# Adds machine, versions and date to the figures of a C++ program. The Python programs do that themselves.
name_machine() { # FILE
  PYTHONPATH=$PWD/bench:$PYTHONPATH python3 -m measuring.results "$1"
}

run_part() {
  case $1 in
    seal) "$built/seal_gpu" "$out/seal.json" && name_machine "$out/seal.json" ;;
    exchange) "$built/exchange_gpu" "$out/exchange.json" && name_machine "$out/exchange.json" ;;
    check) python3 bench/device/device_check.py "$built/libdevice_probe.so" --gib 2 --ring-gib 1 ;;
    ordering) python3 bench/device/ordering_check.py --cycles 1000000000 ;;
    save) python3 bench/device/gpu_bench.py --folder "$out" --parts copy --rounds 11 \
      --json "$out/save.json" ;;
    resize) python3 bench/device/gpu_resize.py --json "$out/resize.json" ;;
    logs) python3 bench/device/gpu_logs.py --json "$out/logs.json" ;;
    campaign) python3 bench/device/campaign_gpu.py --holdfast "$built/holdfast/bin/holdfast" \
      --json "$out/campaign.json" ;;
    crucial) python3 bench/device/campaign_gpu.py --holdfast "$built/holdfast/bin/holdfast" \
      --bits 30 --trials 200 --json "$out/crucial.json" ;;
    pairs) bench/device/pairs.sh "$out" ;;
    *) echo "all.sh: no part $1" >&2; return 2 ;;
  esac
}

begun=$SECONDS
if ! build >"$out/build.log" 2>&1; then
  grep -n -m 5 -A 5 -E "error|Error" "$out/build.log" || tail -n 40 "$out/build.log"
  exit 1
fi
echo "built in $((SECONDS - begun)) s"
failed=0
summary=""
for part in "${parts[@]}"; do
  begun=$SECONDS
  echo "== $part"
  run_part "$part" 2>&1 | tee "$out/$part.log"
  code=${PIPESTATUS[0]}
  [[ $code == 0 ]] || failed=1
  summary+="$part: exit code $code, $((SECONDS - begun)) s"$'\n'
done
printf '== summary\n%s' "$summary"
exit $failed
