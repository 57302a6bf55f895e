"""Measures how long a training stands still when its parallel configuration changes.

    resize_bench.py [--rounds N] [--json FILE]

The training of examples/elastic_gpt.py changes while it lives (`holdfast resize`), and is stopped, saved and
started again with the other configuration: under `holdfast launch`, and under torchrun. Counted is, on
the slowest rank, the time from the end of the last step before to the end of the first step after it, less
the median step of the new configuration. Bars: a change stands still at most 0.5 s in the median; a restart
under torchrun takes at least 10 times as long.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring.options import parser
from measuring.paired import in_turns, interval
from measuring.results import Bars, progress, write

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/elastic_gpt.py"
ROWS = {"4 to 4": ("tp=2,pp=2", "pp=2,dp=2"), "2 to 4": ("dp=2", "dp=4"), "4 to 2": ("dp=4", "dp=2")}
STILL, RESTART = 0.5, 10.0
# Runs the example, and writes down when each of its steps has ended.
TIMED = """
import os, runpy, sys, time
import torch
torch.set_num_threads(1)
import holdfast
script, run, *rest = sys.argv[1:]
step = holdfast.Checkpointer.step
def timed(self, number, *args, **kwargs):
    with open(f"{run}.times.{os.getpid()}", "a") as file:
        print(number, time.monotonic(), rest[0], file=file)
    step(self, number, *args, **kwargs)
holdfast.Checkpointer.step = timed
sys.path.insert(0, os.path.dirname(script))
sys.argv = [script, run, *rest]
runpy.run_path(script, run_name="__main__")
"""


class Training:
    """A training of the example in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.run, self._script = folder / "run", folder / "timed.py"
        self._script.write_text(TIMED)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, launcher: list[str], parallel: str) -> None:
        """Starts it with that configuration."""
        log = open(self.run.parent / "log", "ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", *launcher, self._script, EXAMPLE, self.run, parallel, "--steps", "100000"],
            stdout=log, stderr=log, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def stop(self) -> None:
        """Has it save and end."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait()

    def steps(self) -> dict[int, float]:
        """When each step has ended on the slowest rank."""
        ends: dict[int, float] = {}
        for path in self.run.parent.glob("run.times.*"):
            for line in path.read_text().splitlines():
                step, at = line.split()[:2]
                ends[int(step)] = max(ends.get(int(step), 0.0), float(at))
        return ends

    def wait_for(self, step: int) -> None:
        """Returns when that step has ended."""
        until = time.monotonic() + 120
        while max(self.steps(), default=-1) < step:
            assert self._process is not None
            if time.monotonic() > until or self._process.poll() is not None:
                sys.exit(f"the example does not go on: {(self.run.parent / 'log').read_text()[-600:]}")
            time.sleep(0.05)

    def stood_still(self, after: int) -> float:
        """The time behind that step, less a step of the new configuration."""
        ends = self.steps()
        later = [ends[step + 1] - ends[step] for step in sorted(ends)[:-1] if step > after + 3]
        return ends[after + 1] - ends[after] - statistics.median(later)


def resized(old: str, new: str, ranks: int, most: int) -> float:
    """Seconds that a living training stands still."""
    with tempfile.TemporaryDirectory() as folder:
        training = Training(Path(folder))
        training.start(["holdfast.launch", "-n", str(ranks), "--most", str(most)], old)
        training.wait_for(20)
        asked = subprocess.run([sys.executable, "-m", "holdfast.resize", training.run, "--to", new, "--json"],
                               capture_output=True, text=True, check=False)
        if asked.returncode != 0:
            sys.exit(f"holdfast resize: {asked.stderr}")
        after = json.loads(asked.stdout)["step"]
        training.wait_for(after + 15)
        training.stop()
        return training.stood_still(after)


def restarted(launcher: str, old: str, new: str, ranks: int, later: int) -> float:
    """Seconds between the steps of a training that is stopped and started again."""
    def command(processes: int) -> list[str]:
        if launcher == "torchrun":
            return ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        return ["holdfast.launch", "-n", str(processes)]

    with tempfile.TemporaryDirectory() as folder:
        training = Training(Path(folder))
        training.start(command(ranks), old)
        training.wait_for(20)
        training.stop()
        after = max(training.steps())
        training.start(command(later), new)
        training.wait_for(after + 15)
        training.stop()
        return training.stood_still(after)


def main() -> int:
    given = parser(__doc__, rounds=3, json=None).parse_args()
    bars, figures = Bars(), {}
    for row, (old, new) in ROWS.items():
        before, later = (int(word) for word in row.split(" to "))
        seen = in_turns({
            "resize": lambda: resized(old, new, before, max(before, later)),
            "restart": lambda: restarted("holdfast launch", old, new, before, later),
            "torchrun": lambda: restarted("torchrun", old, new, before, later)}, given.rounds)
        progress(f"{row}: {seen}")
        figures[row] = seen
        bars.at_most(f"{row}: stands still in a change", interval(seen["resize"]), STILL, " s")
        bars.show(f"{row}: a restart under holdfast launch", statistics.median(seen["restart"]), "s")
        ratio = [b / a for a, b in zip(seen["resize"], seen["torchrun"])]
        bars.at_least(f"{row}: a restart under torchrun, of a change", statistics.median(ratio), RESTART)
    write(given.json, {"figures": bars.figures, "rounds": figures})
    return 0 if bars.passed else 1


if __name__ == "__main__":
    sys.exit(main())
