"""The four findings of the study, and the rules by which they are confirmed or refuted."""

import math
from dataclasses import dataclass
from typing import Any

from cells import BITS, CRUCIAL
from holdfast.statistics import (
    DISTANCE_MARGIN,
    HARM,
    binomial_tail,
    fisher_p,
    holm,
    mcnemar_p,
    paired_difference,
    rate_difference,
)

CONFIRMED, REFUTED, UNDECIDED = "confirmed", "refuted", "undecided"
NO_DIFFERENCE = "no relevant difference"
NOT_RUN = "not run"
NO_PAIR = "no pair to compare: both sides of a pair must have run on the same machine"
LEVEL = 0.05  # of all tests of a finding together
RELEVANT = 0.01  # smaller differences of rates are not relevant

Cells = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Verdict:
    word: str
    why: str  # the interval and p


def when_all_have_run(verdict: Verdict, done: int, planned: int) -> Verdict:
    """The verdict if all planned trials have run. Whoever tests again after every few trials finds
    something in the end, so before that there is none."""
    if done >= planned:
        return verdict
    if done == 0:
        return Verdict(NOT_RUN, "")
    return Verdict(UNDECIDED, f"{done:,} of {planned:,} trials run; so far: {verdict.why}")


def harm(cell: dict[str, Any]) -> int:
    return sum(cell["outcomes"].get(outcome, 0) for outcome in HARM)


@dataclass(frozen=True)
class Against:
    """A rate of harm beside another one."""

    name: str
    other: str
    low: float
    high: float
    change: float
    p: float  # corrected for all comparisons of the finding

    @property
    def above(self) -> bool:
        return self.p < LEVEL and self.change > 0

    @property
    def below(self) -> bool:
        return self.p < LEVEL and self.change < 0


def against(cells: Cells, names: list[tuple[str, str]]) -> list[Against]:
    """Compares independent cells. A cell that is missing has no trials."""
    none = {"trials": 0, "outcomes": {}}
    sides = [(cells.get(name, none), cells.get(other, none)) for name, other in names]
    counts = [(harm(one), one["trials"], harm(other), other["trials"]) for one, other in sides]
    corrected = holm([fisher_p(*each) if each[1] and each[3] else 1.0 for each in counts])
    return [Against(*pair, *rate_difference(*each), rate(*each[:2]) - rate(*each[2:]), p)
            for pair, each, p in zip(names, counts, corrected)]  # fmt: skip


def rate(hits: int, trials: int) -> float:
    return hits / trials if trials else 0.0


def judge(found: list[Against]) -> str:
    if any(each.below for each in found):
        return REFUTED
    return CONFIRMED if all(each.above for each in found) else UNDECIDED


def crucial_bit(cells: Cells) -> Verdict:
    """Harm at bit 30 of weights lies above that of every other bit."""
    name = "bit-weights-{}".format
    found = against(cells, [(name(CRUCIAL), name(bit)) for bit in BITS if bit != CRUCIAL])
    worst = max(found, key=lambda each: each.p)
    top = cells.get(name(CRUCIAL), {"trials": 0, "outcomes": {}})
    return Verdict(judge(found),
                   f"bit {CRUCIAL}: {harm(top)} of {top['trials']} trials are harmed; above "
                   f"{sum(each.above for each in found)} of {len(found)} other bits; the nearest "
                   f"is bit {worst.other.rpartition('-')[2]}, {points(worst)}")  # fmt: skip


def points(each: Against) -> str:
    return (f"{100 * each.change:+.1f} points ({100 * each.low:+.1f} to {100 * each.high:+.1f}), "
            f"corrected p {p_text(each.p)}")


def p_text(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def more_resilient(pair: dict[str, Any]) -> Verdict:
    """Horovod's rate of harm lies below DDP's."""
    first, second, pairs = pair["only_first"], pair["only_second"], pair["pairs"]
    if pairs == 0:
        return Verdict(UNDECIDED, NO_PAIR)
    low, high = harm_difference(pair)
    word = UNDECIDED
    if -RELEVANT < low and high < RELEVANT:
        word = NO_DIFFERENCE
    elif low > 0 or high < 0:
        word = CONFIRMED if low > 0 else REFUTED
    change = rate(first - second, pairs)
    return Verdict(word,
                   f"DDP's rate of harm less Horovod's: {100 * change:+.2f} points "
                   f"({100 * low:+.2f} to {100 * high:+.2f}); harmed only with DDP {first}, only "
                   f"with Horovod {second}, in both {pair['both']} of {pairs}; p "
                   f"{p_text(mcnemar_p(first, second))}")  # fmt: skip


def harm_difference(pair: dict[str, Any]) -> tuple[float, float]:
    """The interval of the first rate of harm less the second, over the same plans."""
    counts = [pair[name] for name in ("both", "only_first", "only_second")]
    return paired_difference(*counts, pair["pairs"] - sum(counts))


def spreads_alike(pair: dict[str, Any]) -> Verdict:
    """In every layer and step the median distance to golden is the same within a factor of 2."""
    rows = list(pair["spread"].values())
    if not rows:
        return Verdict(UNDECIDED, NO_PAIR)
    beyond = [(row["pairs"], max(row["above"], row["below"])) for row in rows]
    inside = holm([binomial_tail(pairs, most) for pairs, most in beyond])
    outside = holm([binomial_tail(pairs, pairs - most) for pairs, most in beyond])
    word = UNDECIDED
    if any(p < LEVEL / 2 for p in outside):
        word = REFUTED
    elif all(p < LEVEL and is_inside(row) for p, row in zip(inside, rows)):
        word = CONFIRMED
    low, high = min(float(row["low"]) for row in rows), max(float(row["high"]) for row in rows)
    return Verdict(word,
                   f"median log10 of the ratio in {len(rows)} layers and steps: all intervals lie "
                   f"between {signed(low)} and {signed(high)}; largest corrected p that it lies "
                   f"within ±{DISTANCE_MARGIN}: {p_text(max(inside))}; {pair['pairs'] - pair['lost']} "
                   f"pairs, and {pair['lost']} without an end to compare")  # fmt: skip


def is_inside(row: dict[str, Any]) -> bool:
    return -DISTANCE_MARGIN < float(row["low"]) and float(row["high"]) < DISTANCE_MARGIN


def signed(value: float | str) -> str:
    value = float(value)
    if abs(value) < 0.0005:
        return "0.000"
    return f"{value:+.3f}" if math.isfinite(value) else ("-∞" if value < 0 else "+∞")


PARTS = (("role-sgd-weights", "role-sgd-momentum"), ("role-adam-weights", "role-adam-m"),
         ("role-adam-weights", "role-adam-v"))  # fmt: skip


def more_sensitive(cells: Cells) -> Verdict:
    """The model's rate of harm lies above that of each part of the optimizer."""
    found = against(cells, list(PARTS))
    told = [f"{each.name.removeprefix('role-')} against {each.other.rpartition('-')[2]} "
            f"{points(each)}" for each in found]  # fmt: skip
    return Verdict(judge(found), f"the model lies above in {sum(each.above for each in found)} of "
                                 f"{len(found)} comparisons: {'; '.join(told)}")  # fmt: skip
