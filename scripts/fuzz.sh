#!/usr/bin/env bash
# Builds every fuzz target and runs each for a while. Inputs that it finds are kept in
# .cache/fuzz/NAME, and the next run starts from them. An input that crashes a target is kept as
# build/fuzz/NAME-crash-*.
#
#   HOLDFAST_FUZZ_SECONDS   time for each target (default 60)
#
# The first inputs, some of them malicious, are beside the target in testdata/NAME/ and NAME.*/.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${HOLDFAST_FUZZ_SECONDS:-60}
scripts/build.sh fuzz
count=0
while read -r name folder; do
  echo "== $name for $seconds s"
  corpus=.cache/fuzz/$name
  mkdir -p "$corpus"
  inputs=("$corpus")
  for seeds in "$folder/testdata/$name" "$folder/testdata/$name".*; do
    if [[ -d $seeds ]]; then inputs+=("$seeds"); fi
  done
  "build/fuzz/fuzz/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -verbosity=0 -print_funcs=0 -print_final_stats=1 -artifact_prefix="build/fuzz/$name-" "${inputs[@]}"
  count=$((count + 1))
done <build/fuzz/fuzzers.txt
if [[ $count -eq 0 ]]; then
  echo "build/fuzz/fuzzers.txt: no fuzz targets; expected at least one" >&2
  exit 1
fi
echo "$count fuzz targets, no fault found"
