#!/usr/bin/env bash
# Does in a fresh clone what a newcomer does, in the words of the documents: builds, follows the page
# "getting started" (a training is killed and resumed, a script of one's own is adapted), exports the
# weights as docs/weights.md says, and submits the scripts of docs/slurm.md. Prints how long it took
# until a training was resumed, and fails if that was more than 10 minutes.
#
#   newcomer_test.sh [FOLDER]       FOLDER: where the clone is made (default: a temporary folder)
set -euo pipefail
cd "$(dirname "$0")/../.."
source=$PWD
folder=${1:-$(mktemp -d)}
trap 'rm -rf "$folder"' EXIT

# The packages that Debian has are there already, and are not counted: their time is the network's.
begin=$SECONDS
git clone -q "$source" "$folder/holdfast"
cd "$folder/holdfast"
CCACHE_DISABLE=1 make build

# The blocks of a page are run in order, in an empty folder, with the environment that was built.
follow() {
  HOLDFAST_LONG=1 .venv/bin/python -m pytest -q -p no:cacheprovider \
    python/tests/documents/test_blocks.py -k "$1"
}
follow getting_started
minutes=$(((SECONDS - begin + 59) / 60))
echo "from the clone to a resumed training: $((SECONDS - begin)) s"
follow weights
if command -v slurmctld >/dev/null; then tests/slurm/examples_test.sh build/check; fi
if ((minutes > 10)); then
  echo "$0: $minutes minutes; expected 10 at most on 2 idle cores" >&2
  exit 1
fi
