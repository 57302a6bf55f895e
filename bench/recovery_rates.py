"""What ways of recovery cost at other failure rates: simulated from what was measured at one."""

import json
import math
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Mean seconds between failures of the job.
MTBFS = (15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)
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


def cost_of(rows: list[dict], base: float, ranks: int) -> Cost:
    """The costs of a way, from its runs; `base` is the time of a step without any of them."""
    way, step = rows[0]["way"], statistics.fmean(row["step"] for row in rows)
    recovery = [seconds for row in rows for seconds in row["recovery"]]
    restart = max(0.0, statistics.fmean(recovery) - step) if recovery else 0.0
    if way == TORCHFT:  # its survivors go on: the restart takes only the time by which the job is late
        restart = max(0.0, statistics.fmean([late for row in rows for late in row["delay"]] or [0.0]))
    # Holdfast, Horovod and torchft have the state of a step in memory when the step is done.
    in_memory = way in ("Holdfast", TORCHFT) or "Horovod" in way
    if in_memory or "each step" in way:  # each step is a save: what it adds is the stall
        saves = 1.0
        schedule = f"{base:.6f}s"
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


def rates_of(rows: list[dict], program: Path, ours: str, plain: str, ranks: int) -> dict:
    """The total time of each way divided by that of `ours`, by failure rate."""
    by_way: dict[str, list[dict]] = {}
    for row in rows:
        by_way.setdefault(row["way"], []).append(row)
    base = statistics.fmean(row["step"] for row in by_way.pop(plain))
    costs = {way: cost_of(own, base, ranks) for way, own in by_way.items()}
    totals = {way: [simulated_total(program, cost, base, mtbf) for mtbf in MTBFS]
              for way, cost in costs.items()}  # fmt: skip
    ratios = {way: [other / own for other, own in zip(seen, totals[ours])]
              for way, seen in totals.items()}  # fmt: skip
    return {"mtbfs": MTBFS, "costs": {way: vars(cost) for way, cost in costs.items()},
            "ratios": ratios,
            "swift": {way: crossing(seen) for way, seen in ratios.items() if way != ours}}  # fmt: skip


def crossing(ratios: list[float]) -> float | None:
    """The mean time between failures at which a ratio falls below SWIFT's; None if it never is above.

    Interpolates between the two rates that were simulated, in the logarithm of the time.
    """
    if ratios[0] < SWIFT:
        return None
    for at in range(1, len(ratios)):
        if ratios[at] < SWIFT:
            above, below = ratios[at - 1], ratios[at]
            part = (above - SWIFT) / (above - below)
            return MTBFS[at - 1] * (MTBFS[at] / MTBFS[at - 1]) ** part
    return float(MTBFS[-1])
