#!/usr/bin/env bash
# Runs the campaigns of one process of the study of flipped bits (study/corruption) on another machine
# of the same architecture, which needs only Python with torch.
#
#   scripts/campaign_elsewhere.sh prepare                here: fills .cache/elsewhere
#   scripts/campaign_elsewhere.sh run OUT MINUTES        there, in a copy of this folder with .cache/elsewhere
#   python study/corruption/archive.py unpack OUT .cache/campaign     here, with OUT brought back
#
# The checkpoints and the plans are made here, so that both machines flip the same bits of the same files.
# `run` stops by itself after MINUTES, and the same call continues. More options of it go to
# study/corruption/run.py.
set -euo pipefail
cd "$(dirname "$0")/.."
place=.cache/elsewhere
cells=('bit-*' 'count-*' 'crucial-*' 'role-*' 'layer-*' 'moment-*' 'precision-*' 'sampling-*')

# Copies the program with all libraries and the loader of this machine, because another machine may have
# an older C library. The processes that the program starts keep the libraries of their own machine.
copy_program() { # PROGRAM
  local loader
  loader=$(ldd "$1" | grep -o '/[^ ]*/ld-linux[^ ]*')
  mkdir -p $place/lib
  ldd "$1" | grep -o '/[^ ]*' | xargs cp -Lt $place/lib
  cp "$1" $place/lib/program
  cat >$place/holdfast <<END
#!/bin/sh
here=\$(dirname "\$0")
exec "\$here/lib/$(basename "$loader")" --library-path "\$here/lib" "\$here/lib/program" "\$@"
END
  chmod +x $place/holdfast
}

prepare() { # OPTIONS of run.py...
  local program=${HOLDFAST_PROGRAM:-build/release/bin/holdfast}
  rm -rf $place
  copy_program "$program"
  # serve() is all that the training needs of the package, and the file needs no other one.
  mkdir -p $place/python/holdfast
  cp python/holdfast/campaign.py $place/python/holdfast/
  .venv/bin/python study/corruption/run.py --prepare --program "$program" --only "${cells[@]}" "$@"
  (cd .cache/campaign && tar -cz -- *.pt plans) >$place/work.tar.gz
  du -sh $place
}

run() { # OUT MINUTES OPTIONS of run.py...
  local out=$1 minutes=$2 work=$place/work
  if [[ ! -d $work ]]; then
    mkdir $work
    tar -xzf $place/work.tar.gz -C $work
  fi
  chmod +x $place/holdfast $place/lib/* # a copy may have lost that
  # Training is on the CPU, also where there is a GPU.
  CUDA_VISIBLE_DEVICES='' PYTHONPATH=$PWD/$place/python python3 study/corruption/run.py \
    --work $work --program $place/holdfast --no-page --only "${cells[@]}" --minutes "$minutes" \
    "${@:3}" || echo "campaign_elsewhere: some campaigns failed" >&2
  python3 study/corruption/archive.py pack $work "$out"
}

case ${1:-} in
  prepare) prepare "${@:2}" ;;
  run) run "${@:2}" ;;
  *)
    echo "campaign_elsewhere: \"${1:-}\"; expected prepare, or run OUT MINUTES" >&2
    exit 2
    ;;
esac
