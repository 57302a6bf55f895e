"""COCI's rule for data-parallel jobs, for docs/studies/schedule.md."""

import math
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from program import Program, table
from schedule_jobs import (
    HOUR,
    MINUTE,
    PARALLEL_FIGURE,
    POISSON,
    RATES,
    SCENARIOS,
    STALLS,
    STARTS,
    Workers,
    exponential,
    halving,
    percent,
    phases_text,
)


@dataclass
class ParallelJob:
    """A data-parallel job whose number of workers halves, in the range of COCI's parameters."""

    workers: Workers
    stall: float
    rate: float  # of one worker, per minute
    first: float  # the loss at the start
    theta1: float = -0.005  # of one worker, per minute

    @property
    def options(self) -> dict[str, Any]:
        return {"length": 2 * HOUR, "stall": self.stall, "step": 0.25, "objective": "progress",
                "curve": exponential(self.first, self.theta1),
                "workers": phases_text(self.workers)}  # fmt: skip

    @property
    def mean_workers(self) -> float:
        ends = [start for start, _ in self.workers[1:]] + [2 * HOUR]
        parts = (count * (end - start) for (start, count), end in zip(self.workers, ends))
        return sum(parts) / (2 * HOUR)


# The columns of the table of data-parallel jobs: their failures, and the number of the schedule.
PARALLEL_COLUMNS = (
    ("Young, mean rate", POISSON, 1), ("CheckFreq", POISSON, 2),
    ("COCI, one worker's rate", POISSON, 3), ("COCI, mean rate", POISSON, 4),
    ("optimal", POISSON, 5), ("COCI, mean rate, no failure", "no failure", 4),
    ("COCI, mean rate, one in the first 10 %", "one in the first 10 %", 4),
)  # fmt: skip


def parallel_changes(program: Program, job: ParallelJob) -> list[float]:
    """The paper's metric of COCI's rule for several workers and of other policies, against Young
    with one worker's failure rate, for each of PARALLEL_COLUMNS."""
    mtbf = MINUTE / job.rate
    told_one = program.interval(mtbf=mtbf * job.mean_workers, **job.options)["policies"]
    times = next(each["times"] for each in told_one if each["policy"] == "coci-parallel")
    young = [f"{math.sqrt(2 * job.stall * mtbf / count)}s" for count in (1, job.mean_workers)]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(f"{time!r}\n" for time in times))
        file.flush()
        schedules = (*young, "checkfreq", f"at:{file.name}", "coci-parallel", "optimal")
        seen = {title: list(program.simulate(schedules, mtbf=mtbf, seed=7, **SCENARIOS[title],
                                             **job.options).values())
                for title in {title for _, title, _ in PARALLEL_COLUMNS}}  # fmt: skip
    return [seen[title][at]["progress"]["mean"] / seen[title][0]["progress"]["mean"] - 1
            for _, title, at in PARALLEL_COLUMNS]  # fmt: skip


def parallel_row(program: Program, job: ParallelJob) -> list[str]:
    return ["-".join(f"{count:g}" for _, count in job.workers), f"{job.stall:g}", f"{job.rate:g}",
            f"{job.first:g}", *map(percent, parallel_changes(program, job))]  # fmt: skip


def parallel_table(program: Program, pool: ThreadPoolExecutor) -> str:
    """The rows of all data-parallel jobs, and in how many of them each column reaches the published
    figure."""
    jobs = [ParallelJob(halving(most, phases, 2 * HOUR), stall, rate, first)
            for most, phases in ((8, 4), (16, 5), (32, 6))
            for stall, rate, first in product((STALLS[0], STALLS[2]), RATES[:2], STARTS[::2])]
    rows = list(pool.map(partial(parallel_row, program), jobs))
    reached = [sum(float(row[at]) <= 100 * PARALLEL_FIGURE for row in rows)
               for at in range(4, 4 + len(PARALLEL_COLUMNS))]  # fmt: skip
    last = [f"rows at {100 * PARALLEL_FIGURE:.2f} % or below", "", "", "", *map(str, reached)]
    return table(["workers", "Ts, s", "rate, /min", "starting loss",
                  *(title for title, _, _ in PARALLEL_COLUMNS)], [*rows, last])  # fmt: skip
