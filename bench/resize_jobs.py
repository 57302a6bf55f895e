"""Runs bench/resize_training.py in several ways, changes its configuration, and reads when its steps ended."""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from recovery_jobs import end_tree, is_alive

from holdfast.resize.parallel import Parallel

SCRIPT = Path(__file__).resolve().parent / "resize_training.py"
PATIENCE = 600.0  # seconds without a step after which a job is given up
SETTLED = 3  # steps behind a change that are not counted as usual ones
COUNTED = 8  # usual steps behind a change, of which the median is a step
DCP, HANDOVER = ("--dcp",), ("--handover",)


@dataclass(frozen=True)
class Line:
    """The end of a step on one rank."""

    step: int
    at: float
    rank: int
    ranks: int
    pid: int


class Training:
    """A training in a folder of its own."""

    def __init__(self, folder: Path, launcher: str, options: tuple[str, ...] = (), most: int = 4) -> None:
        self.folder, self._launcher, self._options, self._most = folder, launcher, options, most
        self.run = folder / "run"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, parallel: str, *launch_options: str) -> None:
        """Starts it with that configuration."""
        ranks = Parallel.parse(parallel).workers
        if self._launcher == "torchrun":
            command = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *launch_options]
        else:
            command = ["holdfast.launch", "-n", str(ranks), "--most", str(self._most), *launch_options]
        # Without the second variable, ranks that torchrun has started again find the addresses of the
        # ranks before them in its store, and cannot connect (torch 2.13).
        variables = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command, SCRIPT, self.folder, parallel, *self._options],
                stdout=log, stderr=log, start_new_session=True, env=variables)

    def stop(self) -> int:
        """Has it save and end. Returns the last step."""
        assert self._process is not None
        if "--dcp" in self._options:
            part = self.folder / "stop.part"
            part.write_text(str(self.newest() + 4))
            part.rename(self.folder / "stop")
        else:
            self._process.send_signal(signal.SIGTERM)
        self._process.wait()
        (self.folder / "stop").unlink(missing_ok=True)
        return self.newest()

    def end(self) -> None:
        """Ends it at once, with all its processes."""
        if self._process is not None:
            end_tree(self._process)

    def resize(self, to: str) -> dict:
        """Changes the configuration, and returns the answer of the job."""
        asked = subprocess.run([sys.executable, "-m", "holdfast.resize", self.run, "--to", to, "--json"],
                               capture_output=True, text=True, check=False)
        if asked.returncode != 0:
            sys.exit(f"resize_bench: holdfast resize: {asked.stderr}\n{self.said()}")
        return json.loads(asked.stdout)

    def lines(self) -> list[Line]:
        found = []
        for path in self.folder.glob("steps.*"):
            for text in path.read_text().splitlines():
                words = text.split()
                if len(words) == 4:  # the last line may be half there
                    found.append(Line(int(words[0]), float(words[1]), int(words[2]), int(words[3]),
                                      int(path.suffix[1:])))
        return sorted(found, key=lambda line: line.at)

    def newest(self) -> int:
        """The newest step that any rank has made."""
        return max((line.step for line in self.lines()), default=-1)

    def pids(self) -> list[int]:
        """The processes that make steps now, by rank."""
        newest = {line.rank: line.pid for line in self.lines()}
        return [pid for _, pid in sorted(newest.items()) if is_alive(pid)]

    def wait_for(self, step: int) -> None:
        """Returns when that step has ended."""
        until, newest = time.monotonic() + PATIENCE, -1
        while (now := self.newest()) < step:
            assert self._process is not None
            if now != newest:
                until, newest = time.monotonic() + PATIENCE, now
            if time.monotonic() > until or self._process.poll() is not None:
                sys.exit(f"resize_bench: the training does not go on: {self.said()}")
            time.sleep(0.05)

    def begin_again(self, parallel: str) -> float:
        """Starts it, and waits for its first step. Returns when that has ended."""
        known = len(self.lines())
        self.start(parallel)
        until = time.monotonic() + PATIENCE
        while len(lines := self.lines()) == known:
            if time.monotonic() > until or self._process.poll() is not None:
                sys.exit(f"resize_bench: the training does not go on: {self.said()}")
            time.sleep(0.02)
        return lines[known].at

    def ends_before(self, moment: float) -> bool:
        """Waits for its end until that moment. True if it has come to its end."""
        try:
            code = self._process.wait(max(0.0, moment - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        if code:
            sys.exit(f"resize_bench: the training has ended with exit code {code}: {self.said()}")
        return True

    def said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]

    def stood_still(self, after: int) -> float:
        """Waits for enough steps behind that one. Returns the time from its end to the end of the next one on
        the slowest rank, less a usual step of the new configuration."""
        self.wait_for(after + SETTLED + COUNTED + 1)
        ends: dict[int, float] = {}
        for line in self.lines():
            ends[line.step] = max(ends.get(line.step, 0.0), line.at)
        first = after + 1 + SETTLED
        usual = statistics.median(ends[step + 1] - ends[step] for step in range(first, first + COUNTED - 1))
        return ends[after + 1] - ends[after] - usual


@contextmanager
def training(launcher: str, options: tuple[str, ...] = (), most: int = 4) -> Iterator[Training]:
    """A training in a temporary folder, which is ended at last."""
    with tempfile.TemporaryDirectory(prefix="resize-bench-") as folder:
        made = Training(Path(folder), launcher, options, most)
        try:
            yield made
        finally:
            made.end()
            forget_memory(made.run)


def forget_memory(run: Path) -> None:
    """Removes what a training with handover= has left in memory."""
    try:
        name = json.loads((run / "holdfast.json").read_text())["run"]
    except (OSError, ValueError, KeyError):
        return
    shutil.rmtree(f"/dev/shm/holdfast-{name}", ignore_errors=True)
