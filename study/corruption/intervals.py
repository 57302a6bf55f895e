"""Intervals and tests for the study of flipped bits. All are exact where that is possible.

`holdfast campaign analyse` computes some of the same figures in C++; a test compares the two.
"""

import math
from collections.abc import Sequence

Z = 1.959963984540054  # of a 95 % interval
LEVEL = 0.05


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a rate."""
    if trials == 0:
        return 0.0, 1.0
    rate, more = hits / trials, Z * Z / trials
    middle = (rate + more / 2) / (1 + more)
    half = Z / (1 + more) * math.sqrt(rate * (1 - rate) / trials + more / (4 * trials))
    low = 0.0 if hits == 0 else middle - half
    return low, 1.0 if hits == trials else middle + half


def difference(hits: int, trials: int, other_hits: int,
               other_trials: int) -> tuple[float, float]:
    """The 95 % interval of the difference of two independent rates, by Newcombe's method 10."""
    if trials == 0 or other_trials == 0:
        return -1.0, 1.0
    rate, other = hits / trials, other_hits / other_trials
    (low, high), (other_low, other_high) = wilson(hits, trials), wilson(other_hits, other_trials)
    below = math.hypot(rate - low, other_high - other)
    above = math.hypot(high - rate, other - other_low)
    return rate - other - below, rate - other + above


def paired_difference(both: int, only_first: int, only_second: int,
                      pairs: int) -> tuple[float, float]:
    """The 95 % interval of the difference of two rates over the same plans, by Newcombe's method 10
    for pairs: the intervals of both rates, combined with the correlation of the pairs."""
    if pairs == 0:
        return -1.0, 1.0
    hits, other_hits = both + only_first, both + only_second
    (low, high), (other_low, other_high) = wilson(hits, pairs), wilson(other_hits, pairs)
    rate, other = hits / pairs, other_hits / pairs
    linked = 2 * _correlation(both, only_first, only_second, pairs)

    def distance(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x * x - linked * x * y + y * y))

    return (rate - other - distance(rate - low, other_high - other),
            rate - other + distance(high - rate, other - other_low))


def _correlation(both: int, only_first: int, only_second: int, pairs: int) -> float:
    """Of the outcomes of a pair. Newcombe makes a positive one smaller by half a pair."""
    neither = pairs - both - only_first - only_second
    product = ((both + only_first) * (only_second + neither) * (both + only_second)
               * (only_first + neither))  # fmt: skip
    if product == 0:
        return 0.0
    excess = both * neither - only_first * only_second
    return (max(excess - pairs / 2, 0.0) if excess > 0 else excess) / math.sqrt(product)


def at_most(hits: int, trials: int, rate: float = 0.5) -> float:
    """The chance of at most so many hits."""
    return min(1.0, math.fsum(_binomial(trials, k, rate) for k in range(hits + 1)))


def _binomial(trials: int, hits: int, rate: float) -> float:
    ways = math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)
    return math.exp(ways + hits * math.log(rate) + (trials - hits) * math.log1p(-rate))


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p that both arms have the same rate."""
    return min(1.0, 2 * at_most(min(only_first, only_second), only_first + only_second))


def fisher(hits: int, trials: int, other_hits: int, other_trials: int) -> float:
    """The exact two-sided p that two independent arms have the same rate."""
    total, both = hits + other_hits, trials + other_trials
    least, most = max(0, total - other_trials), min(total, trials)
    chances = [math.exp(_ways(trials, k) + _ways(other_trials, total - k) - _ways(both, total))
               for k in range(least, most + 1)]  # fmt: skip
    seen = chances[hits - least] * (1 + 1e-7)  # equal chances differ in their last bits
    return min(1.0, math.fsum(chance for chance in chances if chance <= seen))


def _ways(things: int, chosen: int) -> float:
    return math.lgamma(things + 1) - math.lgamma(chosen + 1) - math.lgamma(things - chosen + 1)


def holm(values: Sequence[float]) -> list[float]:
    """The p values, corrected for their number, in the same order."""
    out, highest = [0.0] * len(values), 0.0
    for place, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - place) * values[index]))
        out[index] = highest
    return out


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and the ends of its 95 % interval, which are values of the sample. Infinite
    values count as what they are."""
    ordered, count = sorted(values), len(values)
    # As many values on each side may be left out as leave a chance of at most 2.5 %.
    out, chance = 0, 0.0
    while out < count // 2 and chance + _binomial(count, out, 0.5) <= LEVEL / 2:
        chance += _binomial(count, out, 0.5)
        out += 1
    low, high = (ordered[out - 1], ordered[count - out]) if out else (-math.inf, math.inf)
    middle = ordered[count // 2]
    if count % 2 == 0 and ordered[count // 2 - 1] != middle:
        middle = (middle + ordered[count // 2 - 1]) / 2
    return middle, low, high
