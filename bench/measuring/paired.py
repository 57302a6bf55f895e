"""Compares ways of doing the same work on a machine that is not quiet.

Other users of a machine slow it down for seconds at a time. Two ways that run far apart in
time may differ for that reason alone. So every round runs each way once, in a new order, and
only figures of the same round are compared. The median of these differences comes with an
interval between two of them (order statistics), which needs no assumption about the noise, and a
bar fails only where the whole interval lies above it.

An interval says what it covers: the chance that such an interval contains the true median. That
is at least 95 % from 6 rounds on. Fewer rounds cannot cover as much: 3 cover 75 %.
"""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from holdfast.statistics import quantile_interval

USUAL = 0.95


class Interval(NamedTuple):
    """A median or another quantile, the ends of its interval, and what that covers."""

    median: float
    low: float
    high: float
    covers: float

    def __str__(self) -> str:
        """An interval that covers less than 95 % says so: "1.02 (0.98 to 1.05, 75 %)", and "1.02 (once)" has none."""
        if self.covers == 0:
            return f"{self.median:.2f} (once)"
        share = "" if self.covers >= USUAL else f", {math.floor(100 * self.covers)} %"
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f}{share})"

    def exceeds(self, bar: float) -> bool:
        """True if the value is above the bar beyond doubt."""
        return self.low > bar

    def falls_below(self, bar: float) -> bool:
        """True if the value is below the bar beyond doubt."""
        return self.high < bar


def in_turns(ways: Mapping[str, Callable[[], float]], rounds: int,
             seed: int = 0) -> dict[str, list[float]]:
    """What each way returned in each round. Every round has an order of its own."""
    order = random.Random(seed)
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name in order.sample(sorted(ways), len(ways)):
            seen[name].append(ways[name]())
    return seen


def seconds_of(work: Callable[[], object]) -> float:
    """The wall time that the work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def difference(values: Sequence[float], base: Sequence[float]) -> Interval:
    """By how much the values are above those of `base` in the same rounds."""
    return interval([value - other for value, other in zip(values, base, strict=True)])


def interval(values: Sequence[float]) -> Interval:
    """The median of the values, with its interval."""
    return quantile(values, 0.5)


def quantile(values: Sequence[float], part: float) -> Interval:
    """The value that `part` of all such values do not exceed, such as 0.99 of them. A few values say
    little about a high quantile: the upper end is the largest of them, and covers less than 95 %."""
    return Interval(*quantile_interval(values, part, USUAL))
