"""Runs a training example that is killed again and again, and measures where its time went."""

import json
import os
import random
import select
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from measuring.events import events_of

ROOT = Path(__file__).resolve().parent.parent
FEWEST = 8  # how many steps a mean needs at least


@dataclass(frozen=True)
class Example:
    """A script of the folder examples, with its options."""

    name: str
    steps: int
    options: tuple[str, ...]

    @property
    def fixed(self) -> str:
        """A cadence that measures nothing. Its last save is after the last step."""
        return f"{self.steps // 5} steps"

    def command(self, folder: Path, every: str, mtbf: float) -> list[str]:
        script = ROOT / "examples" / f"train_{self.name}.py"
        return [sys.executable, str(script), str(folder / "run"), *self.options, "--every",
                every, "--mtbf", f"{mtbf:.3f}", "--losses", str(folder / "losses")]  # fmt: skip


def examples(quick: bool) -> list[Example]:
    """GPT has a large state and ResNet a small one. A step takes a few tenths of a second."""
    gpt, resnet = (30, 30) if quick else (60, 70)
    return [
        Example("gpt", gpt, ("--steps", str(gpt), "--width", "512", "--head", "64",
                             "--batch", "2")),
        Example("resnet", resnet, ("--epochs", "2", "--samples", str(16 * resnet),
                                   "--width", "24", "--ema")),
    ]  # fmt: skip


@dataclass(frozen=True)
class Failures:
    """When a job fails: wall times since its start. There are more than any run can reach."""

    mtbf: float
    times: tuple[float, ...] = ()

    @staticmethod
    def draw(mtbf: float, seed: str) -> "Failures":
        dice = random.Random(seed)
        gaps = (dice.expovariate(1 / mtbf) for _ in range(1000))
        return Failures(mtbf, tuple(accumulate(gaps)))


@dataclass
class Life:
    """One process: when it was started, when each loss arrived, and when it was killed."""

    begun: float
    times: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    killed: float | None = None

    def read(self, text: str, now: float) -> None:
        for line in text.splitlines():
            told = json.loads(line)
            self.times.append(now)
            self.steps.append(told["step"])
            self.losses.append(told["loss"])


@dataclass
class Save:
    """A save: its step, when it began and ended, and whether it became durable."""

    step: int
    begun: float
    ended: float
    durable: bool


class Job:
    """Runs an example until it is done, and starts it again after each kill."""

    def __init__(self, example: Example, every: str, failures: Failures, folder: Path):
        self.example, self.every, self.folder = example, every, folder
        self.mtbf, self.failures = failures.mtbf, list(failures.times)
        self.lives: list[Life] = []
        folder.mkdir()
        os.mkfifo(folder / "losses")  # a pipe shows at once when a loss is written
        self.pipe = os.open(folder / "losses", os.O_RDWR | os.O_NONBLOCK)

    def run(self) -> None:
        while not self.done():
            self.live()
        os.close(self.pipe)

    def done(self) -> bool:
        last = self.lives[-1] if self.lives else None
        return last is not None and last.steps[-1:] == [self.example.steps - 1]

    def live(self) -> None:
        command = self.example.command(self.folder, self.every, self.mtbf)
        one_core = os.environ | {"OMP_NUM_THREADS": "1"}
        life = Life(time.monotonic())
        self.lives.append(life)
        with open(self.folder / "errors", "wb") as errors:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors,
                                       env=one_core)  # fmt: skip
        ended = os.pidfd_open(process.pid)
        whole = False
        try:
            whole = self.wait(life, ended)
            life.killed = None if whole else time.monotonic()
        finally:
            if not whole:
                process.kill()
            process.wait()
            os.close(ended)
        self.take(life)
        if self.done():
            life.killed = None  # the training was done before the kill
        if whole and (process.returncode or not self.done()):
            self.complain(command, process.returncode)

    def complain(self, command: list[str], code: int) -> None:
        said = (self.folder / "errors").read_text()[-2000:]
        sys.exit(f"failures_bench: {' '.join(command)}: exit {code}\n{said}")

    def wait(self, life: Life, ended: int) -> bool:
        """Returns True when the process has ended, False when it must be killed."""
        while True:
            due = self.failures[0] + self.lives[0].begun if self.failures else None
            left = None if due is None else max(0.0, due - time.monotonic())
            ready, _, _ = select.select([self.pipe, ended], [], [], left)
            self.take(life)
            if ended in ready:
                return True
            if due is not None and time.monotonic() >= due:
                self.failures.pop(0)
                if life.times and not self.done():  # a failure during a restart has no effect
                    return False

    def take(self, life: Life) -> None:
        try:
            life.read(os.read(self.pipe, 1 << 16).decode(), time.monotonic())
        except BlockingIOError:
            pass

    def saves(self) -> list[Save]:
        """All saves in order. A save that a kill interrupted ends with the kill."""
        out = []
        for life in self.lives:
            end = life.killed or life.times[-1]
            for event in self.events("save_captured", life.begun, end):
                if event["step"] not in life.steps:
                    continue
                begun = life.times[life.steps.index(event["step"])]
                durable = [e["mono_ns"] / 1e9 for e in self.events("save_durable", begun, end)
                           if e["step"] == event["step"]]  # fmt: skip
                out.append(Save(event["step"], begun, durable[0] if durable else end,
                                bool(durable)))  # fmt: skip
        return out

    def events(self, name: str, begin: float, end: float) -> list[dict]:
        return [event for event in events_of(self.folder / "run", name, "rank-0000.jsonl")
                if begin <= event["mono_ns"] / 1e9 <= end]


@dataclass
class Measured:
    """What the time of a run was spent on, in seconds."""

    step: float  # the mean time of a step while no save is in progress
    start: float  # from the start of the first process to its first step
    makespan: float  # from the first step to the last loss
    saves: int
    stalled: float
    persist: float
    redone: float
    restarts: list[float]
    up: list[float]  # from each restart to the kill
    paced: list[float]  # the same if every step and save had taken its mean time
    saved: list[int]  # the numbers of the steps that became durable

    @property
    def overhead(self) -> float:
        return sum(self.restarts) + self.stalled + self.redone


def measure(job: Job, pace: float | None = None) -> Measured:
    """Measures a run. The parts add up: makespan = steps + stalls + redone + restarts.

    The time of a step is the mean of this run. If fewer than FEWEST steps ran without a save in
    progress, it is `pace`, the mean of another run.
    """
    saves = job.saves()
    idle, every = [], []
    for life in job.lives:
        for begin, end in zip(life.times, life.times[1:]):
            beside = any(save.begun < end and begin < save.ended for save in saves)
            every.append(end - begin)
            if not beside:
                idle.append(end - begin)
    step = pace if pace and len(idle) < FEWEST else statistics.fmean(idle)
    begins = [life.times[0] - step for life in job.lives]
    kills = [life.killed for life in job.lives if life.killed]
    done = sum(len(life.steps) for life in job.lives)
    torn = sum(life.killed - life.times[-1] for life in job.lives if life.killed)
    stalled = sum(every) - step * len(every)
    persists = [save.ended - save.begun for save in saves if save.durable]
    stall = stalled / max(len(saves), 1)
    return Measured(
        step=step,
        start=begins[0] - job.lives[0].begun,
        makespan=job.lives[-1].times[-1] - begins[0],
        saves=len(saves),
        stalled=stalled,
        persist=max(0.0, statistics.fmean(persists) - stall) if persists else 0.0,
        redone=(done - job.example.steps) * step + torn,
        restarts=[begin - kill for begin, kill in zip(begins[1:], kills)],
        up=[kill - begin for kill, begin in zip(kills, begins)],
        paced=[paced(life, saves, step, stall) for life in job.lives if life.killed],
        saved=[save.step for save in saves if save.durable],
    )


def paced(life: Life, saves: list[Save], step: float, stall: float) -> float:
    """How long the process would have run until its kill if steps and saves took their means."""
    took = (life.times[-1] - life.times[0]) / max(len(life.times) - 1, 1) or step
    begun = sum(life.begun < save.begun < life.killed for save in saves)
    part = min(1.0, (life.killed - life.times[-1]) / took)
    return (len(life.times) + part) * step + begun * stall
