"""Measures how much longer a step takes while `holdfast rehearse` records it.

    rehearse_bench.py [--rounds N] [--steps N] [--json PATH] [--doc]

The training of examples/train_gpt.py runs by turns as it is and with a record of each step, in new
processes. Counted is the median time from one step to the next. Bar: a recorded step takes at most
1.3 times as long, beyond the interval of the ratio. The figure of docs/rehearse.md is made by

    rehearse_bench.py --json bench/results/rehearse.json
    rehearse_bench.py --doc     # writes the figures of that file into the page; measures nothing
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import results
from measuring.machines import busy_cores, this_run
from measuring.options import parser
from measuring.paired import in_turns, interval
from rehearse_page import BAR, MEASURED, committed, section

from holdfast.rehearse.plan import VARIABLE, Plan

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/train_gpt.py"
# Runs the example, and prints when each call of ck.step() began.
TIMED = """
import os, runpy, sys, time
import holdfast
script, run, most = sys.argv[1:]
step, times = holdfast.Checkpointer.step, []
def timed(self, *args, **kwargs):
    times.append(time.perf_counter())
    if len(times) > int(most):
        print("times", *times, flush=True)
        os._exit(0)
    step(self, *args, **kwargs)
holdfast.Checkpointer.step = timed
sys.argv = [script, run, "--every", "1h"]
runpy.run_path(script, run_name="__main__")
"""


def median_step(recorded: bool, steps: int) -> float:
    """Seconds from one step to the next, in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        variables = dict(os.environ)
        if recorded:
            Plan(1, os.getpid(), steps + 10).write(Path(folder))
            variables[VARIABLE] = folder
        done = subprocess.run([sys.executable, "-c", TIMED, str(EXAMPLE), f"{folder}/run",
                               str(steps)], env=variables, capture_output=True, text=True)
        found = re.search(r"^times (.*)$", done.stdout, re.MULTILINE)
        if found is None:
            sys.exit(f"the example failed: {done.stderr.strip().splitlines()[-1:]}")
        times = [float(word) for word in found[1].split()]
        return statistics.median(b - a for a, b in zip(times[3:], times[4:]))


def main() -> int:
    made = parser(__doc__, rounds=6, json=None)
    made.add_argument("--steps", type=int, default=30, help="steps of each training")
    made.add_argument("--doc", action="store_true",
                      help="write the committed figures into docs/rehearse.md, and measure nothing")
    given = made.parse_args()
    if given.doc:
        MEASURED.write(section(committed()))
        return 0
    load = busy_cores()
    seen = in_turns({"plain": lambda: median_step(False, given.steps),
                     "recorded": lambda: median_step(True, given.steps)}, given.rounds)
    ratio = interval([b / a for a, b in zip(seen["plain"], seen["recorded"])])
    step = statistics.median(seen["plain"]) * 1e3
    bars = results.Bars()
    bars.show("a step", step, "ms")
    bars.at_most("a recorded step, of a step", ratio, BAR)
    results.write(given.json, {**this_run(), "load": load, "step_ms": step, "ratio": ratio._asdict(),
                               "bars": bars.figures, "seconds": seen})
    return 0 if bars.passed else 1


if __name__ == "__main__":
    sys.exit(main())
