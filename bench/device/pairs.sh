#!/usr/bin/env bash
# Runs the cells of the study of flipped bits that compare DDP with Horovod, on a machine with many
# cores, after all.sh has built Holdfast there: bench/device/pairs.sh OUT [MINUTES]
#
# Horovod is compiled first, from what pack.sh has carried along. Trials of such a machine that are in
# study/corruption/trials are continued. Those that were run are packed into OUT at the end:
#
#   python study/corruption/archive.py unpack OUT .cache/campaign
#   python study/corruption/run.py --only-page
set -euo pipefail
cd "$(dirname "$0")/../.."
if [[ $# -lt 1 ]]; then
  echo "pairs: no folder; expected bench/device/pairs.sh OUT [MINUTES]" >&2
  exit 2
fi
out=$1 minutes=${2:-60}
carried=$PWD/.cache/carried work=.cache/campaign trials=study/corruption/trials

export CPLUS_INCLUDE_PATH=$carried/include
export C_INCLUDE_PATH=$CPLUS_INCLUDE_PATH CMAKE_BUILD_PARALLEL_LEVEL MAKEFLAGS
CMAKE_BUILD_PARALLEL_LEVEL=$(nproc)
MAKEFLAGS=-j$(nproc)
HOLDFAST_PYTHON=$(command -v python3) \
  HOLDFAST_PIP_OPTIONS="--no-index --find-links $carried/wheels" scripts/rivals.sh horovod

if [[ ! -d $work ]]; then python3 study/corruption/archive.py unpack $trials $work; fi
CUDA_VISIBLE_DEVICES='' PYTHONPATH=$PWD/build/device/holdfast/python python3 study/corruption/run.py \
  --work $work --program build/device/holdfast/bin/holdfast --no-page --minutes "$minutes" \
  --only 'ddp-*' 'horovod-*' || echo "pairs: some campaigns failed" >&2
python3 study/corruption/archive.py pack $work "$out"
