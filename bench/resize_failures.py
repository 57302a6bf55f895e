"""The part "policies" of bench/resize_bench.py: COCI's second scenario on a real job.

A DDP job has four workers, then two, then one, as `holdfast simulate --allocate` says (allocate_over() of
holdfast/simulate/allocate.h): its loss falls, and another job gains more from them. All its processes are killed
at moments that are drawn with the rate of one worker times their number, and it is started again from its newest
checkpoint. Each policy meets the same moments. The overhead is what COCI's abstract counts: what checkpoints
cost, and what recoveries cost, here in worker-seconds. `holdfast simulate` then replays the run, from the
measured time of a step, a save and a restart, the saves that the run has made, and its kills.

A running job knows all policies but coci-parallel, whose schedule `holdfast interval` plans before the run: from what
a save took under the first policy in the same round. The others learn that while they run.

A change of the configuration is not part of the simulation, and counted apart.
"""

import itertools
import json
import random
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measuring.events import events_of
from measuring.results import progress
from resize_jobs import PATIENCE, Line, Training, training
from resize_parts import PROGRAM, simulated_phases

POLICIES = ("young", "checkfreq", "coci", "coci-parallel", "auto")
PHASE = 15.0  # seconds, of each number of workers
PACE = 0.8  # seconds of a step of one worker
BALLAST = 256 << 20  # bytes, so that a save costs something
MTBF = 60.0  # seconds, of one worker
FEWEST = 6  # steps without a save beside them, for their median to count
NO_MORE = 1e9  # seconds; a trace begins again behind its last failure


def policies(number: int) -> dict[str, Any]:
    """A round: what the same kills cost under each policy."""
    phases, length = simulated_phases(PHASE)
    kills = moments(phases, length, f"policies {number}")
    plan = Plan.of(phases, length)
    undisturbed = plan.run("never", [])
    row: dict[str, Any] = {"phases": phases, "kills at": kills[:8], "ways": {}}
    for every in POLICIES:
        seen = next(iter(row["ways"].values()), None)
        run = plan.run(every, kills, undisturbed, seen and (seen["stall"], seen["persist"]))
        row["ways"][every] = run.costs()
        progress(f"  {every}: {json.dumps(row['ways'][every])}")
    return row


def moments(phases: list[tuple[float, int]], length: float, seed: str) -> list[float]:
    """When the job is killed, in seconds since its first step. There are more than any run can reach."""
    dice, at, found = random.Random(seed), 0.0, []
    ends = [start for start, _ in phases[1:]] + [length]
    for draw in (dice.expovariate(1 / MTBF) for _ in range(100)):
        while True:  # the rate is higher as long as there are more workers
            workers, end = next(((one, end) for (_, one), end in zip(phases, ends, strict=True) if at < end), (1, NO_MORE))
            if draw <= (end - at) * workers:
                break
            draw, at = draw - (end - at) * workers, end
        at += draw / workers
        found.append(at)
    return found


@dataclass(frozen=True)
class Plan:
    """How many steps the job makes with each number of workers."""

    steps: dict[int, int]  # by workers, in their order

    @staticmethod
    def of(phases: list[tuple[float, int]], length: float) -> "Plan":
        ends = [start for start, _ in phases[1:]] + [length]
        return Plan({workers: round((end - start) / (PACE / workers))
                     for (start, workers), end in zip(phases, ends, strict=True)})  # fmt: skip

    @property
    def firsts(self) -> dict[int, int]:
        """The first step with each number of workers."""
        return dict(zip(self.steps, [0, *itertools.accumulate(self.steps.values())][:-1], strict=True))

    def workers_at(self, step: int) -> int:
        return [workers for workers, first in self.firsts.items() if first <= step][-1]

    @property
    def total(self) -> int:
        return sum(self.steps.values())

    def run(self, every: str, kills: list[float], undisturbed: "Run | None" = None,
            save: tuple[float, float] | None = None) -> "Run":
        """Trains to the end. `save`: the stall of a save and the time until it is durable, for a plan."""
        mean = self.total / sum(steps / workers for workers, steps in self.steps.items())
        shrink = ",".join(f"{first - 1}:{workers}" for workers, first in self.firsts.items() if first)
        options = ["--pace", str(PACE), "--ballast", str(BALLAST), "--steps", str(self.total), "--shrink", shrink,
                   "--mtbf", str(MTBF / mean)]
        if every == "coci-parallel":
            assert undisturbed is not None and save is not None
            options += ["--save-at", ",".join(map(str, undisturbed.planned(every, *save)))]
        else:
            options += ["--every", every]
        with training("holdfast", tuple(options)) as job:
            run = Run(self, undisturbed)
            run.make(job, list(kills))
            return run


@dataclass
class Life:
    """The job between two kills."""

    lines: list[Line] = field(default_factory=list)  # of rank 0
    killed: float | None = None


class Run:
    """One run of the job, with its kills."""

    def __init__(self, plan: Plan, undisturbed: "Run | None") -> None:
        self.plan, self._undisturbed = plan, undisturbed
        self.lives: list[Life] = []
        self._saves: list[tuple[int, float, float, bool]] = []  # the step, begin, end, and whether it is durable

    def make(self, job: Training, kills: list[float]) -> None:
        begun, before = None, 0.0
        while not self.lives or self.lives[-1].killed is not None:
            self.lives.append(life := Life())
            first = job.begin_again(f"dp={self.plan.workers_at(newest_saved(job.run) + 1)}")
            begun = begun or first
            kills = [one for one in kills if begun + one > time.monotonic()]  # one in a restart has no effect
            if not job.ends_before(begun + kills[0] if kills else time.monotonic() + PATIENCE):
                life.killed = time.monotonic()
                job.end()
            life.lines = [line for line in job.lines() if line.rank == 0 and line.at > before]
            before = life.lines[-1].at
        self._read_saves(job.run)

    def _read_saves(self, run: Path) -> None:
        durable = {(one["step"], one["mono_ns"] / 1e9) for one in events_of(run, "save_durable", "rank-0000.jsonl")}
        captured = [one["step"] for one in events_of(run, "save_captured", "rank-0000.jsonl")]
        for life in self.lives:
            begins = {line.step: line.at for line in life.lines}
            end = life.killed or life.lines[-1].at
            for step in set(begins) & set(captured):
                done = [at for one, at in durable if one == step and begins[step] <= at <= end]
                self._saves.append((step, begins[step], min(done, default=end), bool(done)))

    @property
    def step_of(self) -> dict[int, float]:
        """The time of a step with each number of workers, while nothing is saved."""
        found: dict[int, list[float]] = {workers: [] for workers in self.plan.steps}
        for life in self.lives:
            for before, line in itertools.pairwise(life.lines):
                beside = any(begin < line.at and before.at < end for _, begin, end, _ in self._saves)
                if before.ranks == line.ranks and not beside:
                    found[line.ranks].append(line.at - before.at)
        if self._undisturbed is None:
            return {workers: statistics.median(took) for workers, took in found.items()}
        known = self._undisturbed.step_of
        return {workers: statistics.median(took) if len(took) >= FEWEST else known[workers]
                for workers, took in found.items()}

    def work(self, step: int, took: dict[int, float]) -> float:
        """How many seconds of work the steps before that one are."""
        return sum(took[self.plan.workers_at(one)] for one in range(step))

    def planned(self, policy: str, stall: float, persist: float) -> list[int]:
        """The steps behind which a policy would save, by `holdfast interval`."""
        took, saved = self.step_of, self._ask("interval", stall, persist)
        times = next(one["times"] for one in saved["policies"] if one["policy"] == policy)
        ends = [self.work(step + 1, took) for step in range(self.plan.total)]
        return sorted({min(range(len(ends)), key=lambda step: abs(ends[step] - at)) for at in times})

    def _ask(self, verb: str, stall: float, persist: float, *more: str) -> dict[str, Any]:
        took = self.step_of
        phases = ",".join(f"{self.work(first, took):.6f}s:{workers}" if first else str(workers)
                          for workers, first in self.plan.firsts.items())
        command = [PROGRAM, verb, "--json", "--length", f"{self.work(self.plan.total, took):.6f}s", "--stall",
                   f"{stall:.6f}s", "--persist", f"{persist:.6f}s", "--mtbf", f"{MTBF}s", "--workers", phases,
                   "--curve", f"exp:1,{PHASE * 4 / 3}s", *more]
        ran = subprocess.run([str(one) for one in command], capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise SystemExit(f"resize_bench: {' '.join(map(str, command))}: {ran.stderr}")
        return json.loads(ran.stdout)

    def costs(self) -> dict[str, float]:
        """What the run cost beside its steps, in worker-seconds, and what its simulation says."""
        took = self.step_of
        found = dict.fromkeys(("stalled", "changes", "redone", "restarts"), 0.0)
        made: set[int] = set()
        ups, restarts, end = [], [], None
        stalled = 0.0
        for life in self.lives:
            first, last = life.lines[0], life.lines[-1]
            begun, changes = first.at - took[first.ranks], 0.0
            if end is not None:
                restarts.append(begun - end)
                found["restarts"] += (begun - end) * first.ranks
            for before, line in itertools.pairwise(life.lines):
                more = line.at - before.at - took[line.ranks]
                changes += more if before.ranks != line.ranks else 0.0
                stalled += more if before.ranks == line.ranks else 0.0
                # Workers that leave in a change have waited for it, too, so the larger number of workers counts.
                found["changes" if before.ranks != line.ranks else "stalled"] += more * max(before.ranks, line.ranks)
            for line in life.lines:
                found["redone"] += took[line.ranks] * line.ranks if line.step in made else 0.0
                made.add(line.step)
            if (end := life.killed) is not None:
                found["redone"] += (end - last.at) * last.ranks
                ups.append(end - begun - changes)
        stall = max(0.0, stalled / max(len(self._saves), 1))
        durable = [end - begin for _, begin, end, is_durable in self._saves if is_durable]
        persist = max(0.0, statistics.fmean(durable) - stall) if durable else 0.0
        simulated = self._replay(ups, restarts, stall, persist)
        return {"kills": len(ups), "saves": len(self._saves), "stall": stall, "persist": persist, **found,
                "overhead": found["stalled"] + found["redone"] + found["restarts"],
                "simulated": simulated["worker_seconds"]["mean"]}

    def _replay(self, ups: list[float], restarts: list[float], stall: float, persist: float) -> dict[str, Any]:
        restart = statistics.fmean(restarts) if restarts else 0.0
        trace = [up + before for up, before in zip(itertools.accumulate(ups), itertools.count(0, restart))]
        took = self.step_of
        saved = sorted({self.work(step + 1, took) for step, _, _, is_durable in self._saves if is_durable})
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / "trace", [*trace, NO_MORE])
            write(Path(folder) / "saves", [one for one in saved if one < self.work(self.plan.total, took)])
            told = self._ask("simulate", stall, persist, "--restart", f"{restart:.6f}s", "--runs", "1", "--schedules",
                             f"at:{folder}/saves", "--failures", f"trace:{folder}/trace")
        return told["schedules"][0]


def write(path: Path, numbers: list[float]) -> None:
    path.write_text("".join(f"{one:.9f}\n" for one in numbers))


def newest_saved(run: Path) -> int:
    """The newest step that has been saved; -1 if there is none."""
    return max((int(one.name.removeprefix("step-")) for one in run.glob("step-*") if one.is_dir()
                and one.name.removeprefix("step-").isdigit()), default=-1)  # fmt: skip
