"""Runs bench/recovery_training.py in several ways, kills its ranks, and measures what that costs."""

import contextlib
import json
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from recovery_torchft import TORCHFT

ROOT = Path(__file__).resolve().parents[1]
HOROVOD = ROOT / ".cache/horovod"
# Names of this machine. Horovod never uses a host again on which a process has died, so each
# process has a host of its own, and there are some for their replacements.
HOSTS = [f"{head}{tail}" for head in ("127", "0177", "0x7f", "0x07f", "00177", "0x007f", "0X7f")
         for tail in (".0.0.1", ".0.1", ".1")]  # fmt: skip
PATIENCE = 180.0  # seconds without a step after which a job is given up
STEADY = 10  # the step after which the memory of a job is measured
LOOKS = 20  # how often it is measured; the most counts


@dataclass(frozen=True)
class Way:
    """A way to keep a training going."""

    name: str
    starter: str  # "holdfast", "torchrun", "horovod" or "torchft"
    options: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()  # of its environment, beside the usual ones

    def command(self, ranks: int, folder: Path, options: list[str]) -> list[str]:
        script = [str(ROOT / "bench/recovery_training.py"), str(folder), *options, *self.options]
        python = sys.executable
        if self.starter == "holdfast":
            return [python, "-m", "holdfast.launch", "-n", str(ranks), *script]
        if self.starter == "torchrun":
            return [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                    str(ranks), "--max-restarts", "1000", *script]  # fmt: skip
        if self.starter == "torchft":
            return [python, str(ROOT / "bench/recovery_torchft.py"), str(ranks), *script, "--torchft"]
        hosts = folder / "hosts"
        hosts.write_text("#!/bin/sh\n" + "".join(f"echo {host}:1\n" for host in HOSTS))
        hosts.chmod(0o755)
        count = str(ranks)
        return [python, "-m", "horovod.runner.launch", "--gloo", "-np", count, "--min-np", count,
                "--max-np", count, "--host-discovery-script", str(hosts), python, *script,
                "--horovod"]  # fmt: skip

    def environment(self) -> dict[str, str]:
        # Without the second variable, ranks that torchrun has started again find the addresses of
        # the ranks before them in its store, and cannot connect (torch 2.13).
        out = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        installed = {"horovod": HOROVOD, "torchft": TORCHFT}.get(self.starter)
        if installed:
            out["PYTHONPATH"] = f"{installed}:{out.get('PYTHONPATH', '')}"
        return out | dict(self.variables)

    @property
    def goes_on(self) -> bool:
        """True if the survivors make steps without the rank that was killed."""
        return self.starter == "torchft"


@dataclass
class Line:
    """A step that a rank has done."""

    rank: int
    pid: int
    step: int
    allowed: float
    done: float
    loss: str
    averaged: int | None = None  # over how many ranks; None if it is always all of them


def is_alive(pid: int) -> bool:
    """False once the process has ended, even if its parent has not looked yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@dataclass
class Kill:
    """A rank that was killed, and how the job went on."""

    at: float
    rank: int
    newest: int  # the newest step that any rank had done
    known: set[int]  # the processes that had made a step
    ended: float = 0.0  # seconds until the system had ended the process and freed its memory
    back: Line | None = None  # the first step of a new process
    new: Line | None = None  # the first step then that had not been done when the rank was killed
    standstill: float = 0.0  # the longest time until then in which nobody did such a step
    progress: tuple[int, float] = (-1, 0.0)  # the newest such step, and when it was done

    @property
    def recovery(self) -> float:
        """Seconds until a new process has done a step."""
        assert self.back is not None
        return self.back.done - self.at

    @property
    def lost(self) -> int:
        """How many steps had to be made again."""
        assert self.back is not None
        return max(0, self.newest + 1 - self.back.step)

    def delay(self, step: float) -> float:
        """By how many seconds the job is late because of the kill, if a step takes `step` seconds."""
        assert self.new is not None
        return self.new.done - self.at - step * (self.new.step - self.newest)

    def hear(self, line: Line) -> None:
        if line.done <= self.at or self.new is not None:
            return
        if self.back is None and line.pid not in self.known:
            self.back = line
        self._follow_progress(line)
        if self.back is not None and line.step > self.newest:
            self.new = line

    def _follow_progress(self, line: Line) -> None:
        step, since = max(self.progress, (self.newest, self.at))
        if line.step > step:
            self.standstill = max(self.standstill, line.done - since)
            self.progress = (line.step, line.done)


@dataclass
class Ran:
    """What a job has done."""

    way: Way
    begun: float
    lines: list[Line] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    memory: int = 0  # the most bytes that all of its processes took, each shared page once
    said: str = ""

    @property
    def total(self) -> float:
        """Seconds from the first step of the first process to the end of the last step."""
        return max(line.done for line in self.lines) - self.lines[0].done

    @property
    def step(self) -> float:
        """The mean time of a step while nothing failed, with what saves add to it."""
        return statistics.fmean(self.steps())

    def steps(self) -> list[float]:
        return [after.done - before.done for before, after in self._pairs()
                if after.step == before.step + 1 and not self._is_disturbed(before, after)]

    def losses(self) -> dict[int, str]:
        """The loss of each step, as the last process that made the step has seen it."""
        return {line.step: line.loss for line in self.lines}

    def share(self, ranks: int) -> float:
        """The share of all samples of the steps that are in an update."""
        parts = {line.step: (line.averaged or ranks) / ranks for line in self.lines}
        return statistics.fmean(parts.values())

    def _pairs(self) -> Iterator[tuple[Line, Line]]:
        last: dict[int, Line] = {}
        for line in self.lines:
            if line.pid in last and line.rank == 0:
                yield last[line.pid], line
            last[line.pid] = line

    def _is_disturbed(self, before: Line, after: Line) -> bool:
        return any(before.done < (kill.new.done if kill.new else after.done) and kill.at < after.done
                   for kill in self.kills)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What a job does, and when its ranks are killed."""

    ranks: int
    steps: int
    options: tuple[str, ...] = ()
    kill_times: tuple[float, ...] = ()  # seconds since the first step
    victims: int = 0  # the seed by which ranks are chosen
    enough: int | None = None  # the job is ended once it has recovered from so many kills


class Job:
    """Runs a way until all steps are done, or as long as its plan says."""

    def __init__(self, way: Way, plan: Plan, folder: Path) -> None:
        self._ranks, self._steps, self._folder = plan.ranks, plan.steps, folder
        self._times, self._enough = list(plan.kill_times), plan.enough
        self._dice = random.Random(plan.victims)
        folder.mkdir(parents=True)
        os.mkfifo(folder / "lines")
        self._pipe = os.open(folder / "lines", os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""
        self._looks = 0  # how often the memory was measured
        self._pids: dict[int, int] = {}  # the process of each rank that made a step last
        self._command = way.command(plan.ranks, folder, ["--steps", str(plan.steps), *plan.options])
        self.ran = Ran(way, 0.0)

    def run(self) -> Ran:
        self.ran.begun = time.monotonic()
        with open(self._folder / "said", "wb") as said:
            process = subprocess.Popen(self._command, stdout=said, stderr=subprocess.STDOUT,
                                       env=self.ran.way.environment(),
                                       start_new_session=True)  # fmt: skip
        try:
            self._follow(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0 if self._enough else 30)  # Horovod's driver may wait for hosts
        finally:
            end_tree(process)
            os.close(self._pipe)
        self.ran.said = (self._folder / "said").read_text(errors="replace")
        if not self._is_done():
            raise RuntimeError(f"{' '.join(self._command)}: ended with {process.returncode} after "
                               f"{len(self.ran.lines)} lines\n{self.ran.said[-3000:]}")
        return self.ran

    def _follow(self, process: subprocess.Popen) -> None:
        heard = time.monotonic()
        while not self._is_done():
            due = self._next_kill()
            now = time.monotonic()
            ready, _, _ = select.select([self._pipe], [], [],
                                        min(0.5, max(0.0, due - now)) if due else 0.5)  # fmt: skip
            if ready:
                heard = time.monotonic()
                self._take()
            if due and time.monotonic() >= due:
                self._kill()
            if ready and self._looks < LOOKS and self._is_steady():
                self._looks += 1
                self.ran.memory = max(self.ran.memory, memory_of_tree(process.pid))
            if process.poll() is not None or time.monotonic() - heard > PATIENCE:
                self._take()
                return

    def _is_done(self) -> bool:
        """True if all ranks have made the last step."""
        if self._enough is not None and len(self.ran.kills) >= self._enough:
            return self.ran.kills[-1].new is not None
        last = self._steps - 1
        return len({line.rank for line in self.ran.lines if line.step == last}) >= self._needed()

    def _needed(self) -> int:
        """How many ranks make the last step."""
        kills = self.ran.kills
        is_missing = self.ran.way.goes_on and kills and kills[-1].back is None
        return self._ranks - 1 if is_missing else self._ranks

    def _is_steady(self) -> bool:
        """True if some steps were made, and the job is not recovering."""
        kills = self.ran.kills
        return self.ran.lines[-1].step >= STEADY and (not kills or kills[-1].new is not None)

    def _next_kill(self) -> float | None:
        if not self._times or not self.ran.lines:
            return None
        return self._times[0] + self.ran.lines[0].done

    def _kill(self) -> None:
        """Kills a rank, unless the job has not recovered from the last kill yet."""
        self._times.pop(0)
        self._take()
        kills = self.ran.kills
        if (kills and kills[-1].new is None) or len(self._pids) < self._ranks:
            return
        if self.ran.lines[-1].step >= self._steps - 3:
            self._times.clear()  # too near to the end
            return
        rank = self._dice.randrange(self._ranks)
        newest = max(line.step for line in self.ran.lines)
        kill = Kill(time.monotonic(), rank, newest, {line.pid for line in self.ran.lines})
        try:
            os.kill(self._pids[rank], signal.SIGKILL)
        except ProcessLookupError:
            return  # Horovod has given the number of this rank to a process that made no step yet
        while is_alive(self._pids[rank]):
            time.sleep(0.0005)
        kill.ended = time.monotonic() - kill.at
        kills.append(kill)

    def _take(self) -> None:
        """Reads the lines that have arrived."""
        while True:
            try:
                self._rest += os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                break
        *whole, self._rest = self._rest.split(b"\n")
        for text in whole:
            self._hear(Line(**json.loads(text)))

    def _hear(self, line: Line) -> None:
        self.ran.lines.append(line)
        self._pids[line.rank] = line.pid
        for kill in self.ran.kills:
            kill.hear(line)


def exponential_times(mean: float, dice: random.Random) -> list[float]:
    """Times of failures, with exponential gaps. There are more than any run can reach."""
    return list(accumulate(dice.expovariate(1 / mean) for _ in range(500)))


def tree(root: int) -> list[int]:
    """The process and all its descendants."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            parents[int(name)] = int(text.rpartition(")")[2].split()[1])
    out = [root]
    for pid in out:
        out += [child for child, parent in parents.items() if parent == pid]
    return out


def memory_of_tree(root: int) -> int:
    """The bytes that a process and its descendants take. Shared pages are divided among them."""
    total = 0
    for pid in tree(root):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in text.splitlines()
                     if line.startswith("Pss:"))  # fmt: skip
    return total


def end_tree(process: subprocess.Popen) -> None:
    """Ends a job that is still running, with all its processes."""
    if process.poll() is not None:
        return
    for pid in tree(process.pid):  # the parent first, so that it replaces none of the others
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
