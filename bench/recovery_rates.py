"""What ways of recovery cost at other failure rates: simulated from what was measured at one."""

import json
import math
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

# Mean seconds between failures of the job.
MTBFS = (15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)
NEAR = (15, 30, 60, 120, 300)  # around the crossings, for the draws
SWIFT = 1.16  # SWIFT's abstract: training is up to this factor shorter than with its rivals
FAILURES = 60  # how many failures a simulated run meets in the mean
TORCHFT = "torchft"
RUNS, MOST_RUNS = 40, 2000
MOST_STEPS = 40000
LEAST_STALL = 1e-4  # seconds; no save is quite free, and the noise of a measurement may say less


@dataclass(frozen=True)
class Cost:
    """What was measured of a way, in seconds."""

    step: float
    restart: float  # by which a kill delays the job: until a new process begins its first step
    stall: float  # by which a save makes the steps longer
    persist: float
    schedule: str  # as `holdfast simulate` names it


def commits_of(way: str) -> int:
    """How many steps there are from one commit or save to the next; 0 if the way does not say."""
    if "each step" in way:
        return 1
    found = re.search(r"every (\d+) steps", way)
    return int(found[1]) if found else 0


def cost_of(rows: list[dict], base: float, ranks: int) -> Cost:
    """The costs of a way, from its runs; `base` is the time of a step without any of them."""
    way, step = rows[0]["way"], statistics.fmean(row["step"] for row in rows)
    recovery = [seconds for row in rows for seconds in row["recovery"]]
    restart = max(0.0, statistics.fmean(recovery) - step) if recovery else 0.0
    if way == TORCHFT:  # its survivors go on: the restart takes only the time by which the job is late
        restart = max(0.0, statistics.fmean([late for row in rows for late in row["delay"]] or [0.0]))
    # Holdfast, Horovod and torchft have the state of a step in memory when the step is done.
    in_memory = way in ("Holdfast", TORCHFT) or "Horovod" in way
    commits = commits_of(way)
    if in_memory or commits:  # what a save adds is the stall
        saves = 1.0 / max(1, commits)
        schedule = f"{max(1, commits) * base:.6f}s"
    else:
        # Each rank has its own events of a save.
        saves = sum(row["saves"] for row in rows) / ranks / sum(row["steps"] for row in rows)
        schedule = "checkfreq" if way == "CheckFreq" else "young"
    stall = max(LEAST_STALL, (step - base) / max(saves, 1e-3))
    persist = 0.0 if in_memory else statistics.fmean(row["persist"] for row in rows)
    if "each step" in way:
        # A save begins while the one before is still written. The simulator has one at a time, and
        # would let the steps wait, which they did not.
        persist = min(persist, base)
    return Cost(step, restart, stall, persist, schedule)


def simulated_total(program: Path, cost: Cost, base: float, mtbf: float) -> float:
    """The time of a job, as a multiple of the time of its steps without failures and saves."""
    # The simulator takes no job with more than 50,000 of Young's intervals, and is slow with many
    # saves. Shorter jobs are simulated more often.
    length = min(FAILURES * mtbf, 40000 * math.sqrt(2 * cost.stall * mtbf), MOST_STEPS * base)
    runs = round(min(MOST_RUNS, RUNS * FAILURES * mtbf / length))
    options = {"length": length, "step": base, "stall": cost.stall, "persist": cost.persist,
               "restart": cost.restart, "mtbf": mtbf}  # fmt: skip
    command = [str(program), "simulate", "--json", "--runs", str(runs), "--schedules",
               cost.schedule]  # fmt: skip
    for name, value in options.items():
        command += [f"--{name}", f"{value:.9f}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"recovery_bench: {' '.join(command)}: {ran.stderr}")
    return 1 + json.loads(ran.stdout)["schedules"][0]["time"]["mean"] / length


def rates_of(rows: list[dict], program: Path, ours: str, plain: str, ranks: int,
             paired: tuple[float, float, float], draws: int = 0) -> dict:
    """The total time of each way divided by that of `ours`, by failure rate.

    `paired` is the share by which steps of `ours` take longer, measured by pairs in the same processes,
    with its interval. It replaces what the totals say, because runs minutes apart differ by more. With
    `draws`, the sequences of kills are drawn again so often, with replacement, for intervals of the
    crossings.
    """
    seen = rates_at(rows, program, ours, plain, ranks, paired[0], MTBFS)
    bounds = [rates_at(rows, program, ours, plain, ranks, share, MTBFS)["ratios"] for share in paired[1:]]
    out = {"mtbfs": MTBFS, "paired": list(paired), **seen,
           "bounds": {way: [sorted(pair) for pair in zip(*(each[way] for each in bounds))]
                      for way in seen["ratios"]},
           "swift": {way: crossing(ratios, MTBFS) for way, ratios in seen["ratios"].items()
                     if way != ours}}  # fmt: skip
    if draws:
        out["swift_intervals"] = crossing_intervals(rows, program, ours, plain, ranks, paired, draws)
    return out


def rates_at(rows: list[dict], program: Path, ours: str, plain: str, ranks: int, share: float,
             mtbfs: Sequence[float]) -> dict:
    """The costs of all ways and their ratios, if steps of `ours` take longer by this share."""
    by_way: dict[str, list[dict]] = {}
    for row in rows:
        by_way.setdefault(row["way"], []).append(row)
    base = statistics.fmean(row["step"] for row in by_way.pop(plain))
    costs = {way: cost_of(own, base, ranks) for way, own in by_way.items()}
    stall = max(LEAST_STALL, share * base)
    costs[ours] = replace(costs[ours], step=base + stall, stall=stall)
    totals = {way: [simulated_total(program, cost, base, mtbf) for mtbf in mtbfs]
              for way, cost in costs.items()}  # fmt: skip
    return {"costs": {way: vars(cost) for way, cost in costs.items()},
            "ratios": {way: [other / own for other, own in zip(each, totals[ours])]
                       for way, each in totals.items()}}  # fmt: skip


def crossing_intervals(rows: list[dict], program: Path, ours: str, plain: str, ranks: int,
                       paired: tuple[float, float, float], draws: int) -> dict[str, list]:
    """For each way the middle 95 % of its crossings over drawn sequences. None stands for no crossing."""
    dice, sequences = random.Random("bootstrap"), sorted({row["sequence"] for row in rows})
    by_sequence = {one: [row for row in rows if row["sequence"] == one] for one in sequences}
    found: dict[str, list[float]] = {}
    for _ in range(draws):
        drawn = [row for one in dice.choices(sequences, k=len(sequences)) for row in by_sequence[one]]
        share = dice.triangular(paired[1], paired[2], paired[0])
        seen = rates_at(drawn, program, ours, plain, ranks, share, NEAR)
        for way, ratios in seen["ratios"].items():
            found.setdefault(way, []).append(crossing(ratios, NEAR) or 0.0)
    return {way: [value or None for value in middle(values)]
            for way, values in found.items() if way != ours}  # fmt: skip


def middle(values: list[float]) -> list[float]:
    """The ends of the middle 95 % of the values."""
    ordered = sorted(values)
    cut = math.floor(0.025 * len(ordered))
    return [ordered[cut], ordered[-1 - cut]]


def crossing(ratios: Sequence[float], mtbfs: Sequence[float] = MTBFS) -> float | None:
    """The mean time between failures at which a ratio falls below SWIFT's; None if it never is above.

    Interpolates between the two rates that were simulated, in the logarithm of the time.
    """
    if ratios[0] < SWIFT:
        return None
    for at in range(1, len(ratios)):
        if ratios[at] < SWIFT:
            above, below = ratios[at - 1], ratios[at]
            part = (above - SWIFT) / (above - below)
            return mtbfs[at - 1] * (mtbfs[at] / mtbfs[at - 1]) ** part
    return float(mtbfs[-1])
