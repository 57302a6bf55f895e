"""The parts of bench/resize_bench.py. Each function measures one round of a part, and returns its figures."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from resize_jobs import DCP, HANDOVER, PATIENCE, Line, Training, training

import holdfast

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("HOLDFAST_BUILD", ROOT / "build/release"))
PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin/holdfast"
FIRST = "tp=2,pp=2"
LAP = {"4 to 4": "pp=2,dp=2", "4 to 2": "dp=2", "2 to 4": FIRST}  # each change begins where the last has ended
LAPS = 2  # of changes of a training that lives, in a round
READY = 15  # the step before which nothing is asked for


def still(number: int) -> dict[str, Any]:
    """Seconds that training stands still, by the way and by the change."""
    ways: dict[str, Callable[[], Any]] = {
        "resize": resized,
        "handover": lambda: restarted("holdfast", HANDOVER),
        "torchrun": lambda: restarted("torchrun", ()),
        "torchrun, DCP": lambda: restarted("torchrun", DCP)}
    order = random.Random(number).sample(sorted(ways), len(ways))
    return {name: ways[name]() for name in order}


def resized() -> dict[str, Any]:
    """A training that lives, and how long each phase of its changes took."""
    seen: dict[str, Any] = {change: [] for change in LAP} | {"phases": {change: [] for change in LAP}}
    with training("holdfast") as job:
        job.start(FIRST)
        job.wait_for(READY)
        for change, to in list(LAP.items()) * LAPS:
            answer = job.resize(to)
            seen[change].append(job.stood_still(answer["step"]))
            seen["phases"][change].append(answer["seconds"] | {"in all": answer["stood_still"]})
    return seen


def restarted(launcher: str, options: tuple[str, ...]) -> dict[str, list[float]]:
    """A training that is stopped, and started again."""
    seen: dict[str, list[float]] = {}
    with training(launcher, options) as job:
        job.start(FIRST)
        job.wait_for(READY)
        for change, to in LAP.items():
            after = job.stop()
            job.start(to)
            seen[change] = [job.stood_still(after)]
            job.wait_for(after + READY)
    return seen


def lost(number: int) -> dict[str, Any]:
    """Seconds from a kill of so many of four replicas to the end of the first new step, and steps made again."""
    seen: dict[str, Any] = {}
    for way in random.Random(number).sample(["holdfast", "torchrun"], 2):
        with training(way, ("--every", "20 steps")) as job:
            job.start("dp=4", *(() if way == "holdfast" else ("--max-restarts", "100")))
            job.wait_for(30)
            seen[way] = {}
            for dead in (1, 2, 3):
                seen[way][str(dead)] = killed(job, dead)
                job.wait_for(job.newest() + 25)
    return seen


def killed(job: Training, dead: int) -> dict[str, float]:
    """Kills the last `dead` replicas, and waits until all replicas make new steps."""
    known, newest, at = set(job.pids()), job.newest(), time.monotonic()
    assert len(known) == 4, known
    for pid in job.pids()[-dead:]:
        os.kill(pid, signal.SIGKILL)
    while True:
        job.wait_for(newest)
        lines = [line for line in job.lines() if line.at > at]
        by_step: dict[int, list[Line]] = {}
        for line in lines:
            by_step.setdefault(line.step, []).append(line)
        whole = {step: own for step, own in by_step.items()
                 if step > newest and len({line.rank for line in own}) == 4
                 and any(line.pid not in known for line in own)}
        if whole:
            again = min(line.step for line in lines if line.pid not in known)
            return {"seconds": max(line.at for line in whole[min(whole)]) - at,
                    "made again": max(0, newest + 1 - again)}
        if time.monotonic() > at + PATIENCE:
            sys.exit(f"resize_bench: the training does not go on after a kill: {job.said()}")
        time.sleep(0.05)


TURNS = (4, 2, 1, 2, 4)
PHASE = float(os.environ.get("HOLDFAST_BENCH_PHASE", "10"))  # seconds
ANY = {4: "tp=2,dp=2", 2: "tp=2", 1: "dp=1"}
FIXED = {4: "tp=2,dp=2", 2: "tp=2"}  # with tp=2, one worker is not enough


def turns(number: int) -> dict[str, list[int]]:
    """The steps that were made with each number of workers, by the way."""
    ways = {"resize": ("holdfast", ANY), "torchrun": ("torchrun", FIXED), "resize dp": ("holdfast", FIXED)}
    order = random.Random(number).sample(sorted(ways), len(ways))
    return {name: turned(*ways[name]) for name in order}


def turned(launcher: str, configurations: dict[int, str]) -> list[int]:
    """A training that has another number of workers every PHASE seconds."""
    with training(launcher) as job:
        job.start(configurations[TURNS[0]])
        job.wait_for(0)
        begun, runs = time.monotonic(), True
        for turn, workers in enumerate(TURNS[1:], 1):
            time.sleep(max(0.0, begun + turn * PHASE - time.monotonic()))
            to = configurations.get(workers)
            if to is None or (runs and launcher == "torchrun"):
                job.stop()
                runs = False
            if to is not None and runs:
                job.resize(to)
            elif to is not None:
                job.start(to)
                runs = True
        time.sleep(max(0.0, begun + len(TURNS) * PHASE - time.monotonic()))
        ends: dict[int, float] = {}
        for line in job.lines():
            ends[line.step] = max(ends.get(line.step, 0.0), line.at)
        return [sum(begun + turn * PHASE < at <= begun + (turn + 1) * PHASE for at in ends.values())
                for turn in range(len(TURNS))]


def redeploy(number: int) -> dict[str, Any]:
    """The figures of bench/layout_change_bench."""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said.json"
        megabytes = os.environ.get("HOLDFAST_BENCH_REDEPLOY", "512")
        subprocess.run([BUILD / "bench/layout_change_bench", megabytes, "--only", "redeploy", "--json", said],
                       stdout=subprocess.DEVNULL, check=False)  # fmt: skip
        return json.loads(said.read_text())


def idle(number: int) -> dict[str, Any]:
    """What bench/resize_idle.py has measured: microseconds of ck.step() with and without Elastic."""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "idle.json"
        done = subprocess.run([sys.executable, "-m", "holdfast.launch", "-n", "2",
                               ROOT / "bench/resize_idle.py", folder, said],
                              capture_output=True, text=True, check=False)  # fmt: skip
        if not said.exists():
            sys.exit(f"resize_bench: resize_idle.py: {done.stderr[-2000:]}")
        return json.loads(said.read_text())


def allocate(number: int) -> dict[str, Any]:
    """A job of dp=4 that shrinks when the simulator says so, and the worker-seconds of both."""
    phases, length = simulated_phases(PHASE)
    with training("holdfast") as job:
        job.start(f"dp={phases[0][1]}")
        job.wait_for(0)
        begun = time.monotonic()
        for at, workers in phases[1:]:
            time.sleep(max(0.0, begun + at - time.monotonic()))
            job.resize(f"dp={workers}")
        time.sleep(max(0.0, begun + length - time.monotonic()))
        job.stop()
        ended = time.monotonic()
        lines = [line for line in job.lines() if line.rank == 0 and line.at > begun]
        steps = {line.step: line for line in lines}
    spent, last = 0.0, begun
    for _, line in sorted(steps.items()):
        spent, last = spent + (line.at - last) * line.ranks, line.at
    spent += (ended - last) * lines[-1].ranks
    ends = [at for at, _ in phases[1:]] + [length]
    return {"phases": phases, "length": length, "measured": spent,
            "simulated": sum(workers * (end - at) for (at, workers), end in zip(phases, ends, strict=True))}


def simulated_phases(phase: float) -> tuple[list[tuple[float, int]], float]:
    """When the job has how many workers, by `holdfast simulate`, and how long it lives. Beside it is another
    job, whose loss falls less and for longer, so that it gets more and more of the five workers."""
    asked = ["simulate", "--length", f"{3 * phase}s", "--reallocate", f"{phase}s", "--allocate", "5", "--stall", "10ms",
             "--mtbf", "10000d", "--runs", "1", "--curve", f"exp:1,{phase * 4 / 3}s", f"exp:0.2,{phase * 4}s", "--json"]
    job = json.loads(subprocess.run([PROGRAM, *asked], capture_output=True, check=True).stdout)["job"]
    return [(one["start"], int(one["count"])) for one in job["workers"]], job["length"]
