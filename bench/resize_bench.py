"""Measures what a change of TP x PP x DP costs a training that lives, beside ways that start it again.

    resize_bench.py [--parts PART,...] [--rounds N] [--json FILE] [--anew] [--doc]

    still     how long training stands still when 4 workers are cut in another way, become 2, and become 4
              again: by `holdfast resize`, by a restart under `holdfast launch` that leaves the state in
              memory (handover=True), and by restarts under torchrun from a checkpoint of Holdfast and of
              torch.distributed.checkpoint (Tenplex, Fig. 12 and 15)
    lost      from a kill of 1, 2 and 3 of 4 workers to the first step that nobody had made: `holdfast
              launch` and `torchrun --max-restarts` (Fig. 11)
    turns     the steps of a training that has 4, 2, 1, 2 and 4 workers for a while each: with any
              configuration, with restarts under torchrun and tp=2, and with changes of dp alone (Fig. 9)
    redeploy  a state moves from 4 ranks to 4 others by messages, and through one store (Fig. 10)
    idle      what holdfast.Elastic adds to a step while nothing changes (Fig. 13)
    allocate  the worker-seconds of a job that shrinks as `holdfast simulate --allocate` says
    policies  what the same kills cost such a job under each policy, in worker-seconds, beside a simulation of
              each run (COCI's second scenario; resize_failures.py)

The training (bench/resize_training.py) is small and paced: each step sleeps, as if devices computed. With
--json, a part that was stopped is continued: the rounds that the file has are not measured again, unless
--anew is given. --doc makes the pages from bench/results/resize.json, and measures nothing.
"""

import argparse
import json
import signal
import sys
from pathlib import Path

import resize_failures
import resize_parts
from measuring.figures_file import Figures
from measuring.options import parser
from measuring.results import Bars, progress
from resize_page import judge, write_pages

RESULTS = Path(__file__).resolve().parent / "results/resize.json"
# How often each part is measured, which takes 20 minutes in all. In a round, the ways of a part take turns.
ROUNDS = {"still": 3, "lost": 2, "turns": 1, "redeploy": 1, "idle": 1, "allocate": 1, "policies": 1}


def parse() -> argparse.Namespace:
    made = parser(__doc__, rounds=None, json=None)
    made.add_argument("--parts", default=",".join(ROUNDS))
    made.add_argument("--anew", action="store_true", help="measure the rounds again that the file has")
    made.add_argument("--doc", action="store_true",
                      help="write the pages from bench/results/resize.json, and measure nothing")
    given = made.parse_args()
    given.parts = given.parts.split(",")
    if unknown := [one for one in given.parts if one not in ROUNDS]:
        made.error(f"--parts {unknown[0]}; expected some of {', '.join(ROUNDS)}")
    return given


def measure(given: argparse.Namespace) -> dict:
    """Measures the rounds that are missing, and keeps each when it is done."""
    figures = Figures(given.json)
    for part in given.parts:
        rows = [] if given.anew else figures.of_this_machine(part)
        for number in range(len(rows), given.rounds or ROUNDS[part]):
            of_part = getattr(resize_failures if part == "policies" else resize_parts, part)
            rows = [*rows, of_part(number)]
            progress(f"{part}, round {number + 1}: {json.dumps(rows[-1])}")
            figures.keep(part, rows)
    return figures.seen


def main() -> int:
    given = parse()
    if given.doc:
        write_pages(json.loads(RESULTS.read_text()))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that trainings are ended
    bars = Bars()
    judge(measure(given), bars)
    return 0 if bars.passed else 1


if __name__ == "__main__":
    sys.exit(main())
