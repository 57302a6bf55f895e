"""Compares ways of doing the same work on a machine that is not quiet.

Other users of a machine slow it down for seconds at a time. Two ways that run far apart in
time may differ for that reason alone. So every round runs each way once, in a new order, and
only figures of the same round are compared. The median of these differences comes with a
confidence interval, and a bar fails only where the whole interval lies above it.
"""

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Interval(NamedTuple):
    """A median and the ends of its 95 % confidence interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"

    def exceeds(self, bar: float) -> bool:
        """True if the value is above the bar beyond doubt."""
        return self.low > bar


def busy_cores(seconds: float = 2.0) -> float:
    """How many cores are at work, so long as this process waits. The load average would count what
    has ended a minute ago."""

    def used() -> tuple[int, int]:
        times = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(times), times[3] + times[4]  # all, and those of idle cores

    before = used()
    time.sleep(seconds)
    after = used()
    share = 1 - (after[1] - before[1]) / max(after[0] - before[0], 1)
    return share * (os.cpu_count() or 1)


def in_turns(ways: Mapping[str, Callable[[], float]], rounds: int,
             seed: int = 0) -> dict[str, list[float]]:
    """What each way returned in each round. Every round has an order of its own."""
    order = random.Random(seed)
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name in order.sample(sorted(ways), len(ways)):
            seen[name].append(ways[name]())
    return seen


def difference(values: Sequence[float], base: Sequence[float]) -> Interval:
    """By how much the values are above those of `base` in the same rounds."""
    return interval([value - other for value, other in zip(values, base, strict=True)])


def interval(values: Sequence[float], resamples: int = 4000, seed: int = 0) -> Interval:
    """The median of the values, with the percentile interval of the bootstrap."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(values, k=len(values)))
                     for _ in range(resamples))
    return Interval(statistics.median(values), medians[round(0.025 * resamples)],
                    medians[round(0.975 * resamples) - 1])


def quantile(values: Sequence[float], part: float) -> Interval:
    """The value that `part` of all such values do not exceed, such as 0.99 of them.

    The lower end is the greatest of the values that lies below the true quantile with a
    probability of 97.5 %, whatever the distribution is. The upper end is the largest value:
    a few values say no more about a high quantile.
    """
    ordered, count = sorted(values), len(values)
    below = [math.comb(count, k) * part**k * (1 - part) ** (count - k) for k in range(count + 1)]
    low = max((k for k in range(1, count + 1) if sum(below[k:]) >= 0.975), default=1)
    return Interval(ordered[math.ceil(part * count) - 1], ordered[low - 1], ordered[-1])
