"""The four findings of the study, and the rules by which they are confirmed or refuted."""

import math
from collections.abc import Iterable
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
from results import ACCURACY, OUTCOME

CONFIRMED, REFUTED, UNDECIDED = "confirmed", "refuted", "undecided"
NO_DIFFERENCE = "no relevant difference"
NOT_RUN = "not run"
NOT_KEPT = "not judged"  # the trials have run, but only their outcomes were kept
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
    if done >= planned or verdict.word == NOT_KEPT:
        return verdict
    if done == 0:
        return Verdict(NOT_RUN, "")
    return Verdict(UNDECIDED, f"{done:,} of {planned:,} trials run; so far: {verdict.why}")


def is_judged(cells: Iterable[dict[str, Any]], rule: str) -> bool:
    """Whether the harm in these cells or pairs is known under a rule. That of outcomes always is."""
    return rule == OUTCOME or all("lower" in cell for cell in cells if counted(cell))


def counted(cell: dict[str, Any]) -> int:
    return cell["trials"] if "trials" in cell else cell["pairs"]


def harm(cell: dict[str, Any], rule: str = OUTCOME) -> int:
    if rule == OUTCOME:
        return sum(cell["outcomes"].get(outcome, 0) for outcome in HARM)
    return cell["lower"][rule]["harm"] if counted(cell) else 0


def pooled(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Several cells as one: their trials and their harm under every rule that all of them know."""
    names = {name for cell in cells for name in cell["outcomes"]}
    whole = {"trials": sum(cell["trials"] for cell in cells),
             "outcomes": {name: sum(cell["outcomes"].get(name, 0) for cell in cells)
                          for name in names}}  # fmt: skip
    if all(is_judged(cells, rule) for rule in ACCURACY):
        whole["lower"] = {rule: {"harm": sum(harm(cell, rule) for cell in cells)}
                          for rule in ACCURACY}  # fmt: skip
    return whole


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


def against(cells: Cells, names: list[tuple[str, str]], rule: str) -> list[Against]:
    """Compares independent cells. A cell that is missing has no trials."""
    none = {"trials": 0, "outcomes": {}}
    sides = [(cells.get(name, none), cells.get(other, none)) for name, other in names]
    counts = [(harm(one, rule), one["trials"], harm(other, rule), other["trials"])
              for one, other in sides]
    corrected = holm([fisher_p(*each) if each[1] and each[3] else 1.0 for each in counts])
    return [Against(*pair, *rate_difference(*each), rate(*each[:2]) - rate(*each[2:]), p)
            for pair, each, p in zip(names, counts, corrected)]  # fmt: skip


def rate(hits: int, trials: int) -> float:
    return hits / trials if trials else 0.0


def judge(found: list[Against]) -> str:
    if any(each.below for each in found):
        return REFUTED
    return CONFIRMED if all(each.above for each in found) else UNDECIDED


def not_kept() -> Verdict:
    return Verdict(NOT_KEPT, "the records of these trials were not kept, only their outcomes")


def crucial_bit(cells: Cells, rule: str = OUTCOME) -> Verdict:
    """Harm at bit 30 of weights lies above that of every other bit."""
    name = "bit-weights-{}".format
    if not is_judged((cells[name(bit)] for bit in BITS if name(bit) in cells), rule):
        return not_kept()
    found = against(cells, [(name(CRUCIAL), name(bit)) for bit in BITS if bit != CRUCIAL], rule)
    worst = max(found, key=lambda each: each.p)
    top = cells.get(name(CRUCIAL), {"trials": 0, "outcomes": {}})
    return Verdict(judge(found),
                   f"bit {CRUCIAL}: {harm(top, rule)} of {top['trials']} trials are harmed; above "
                   f"{sum(each.above for each in found)} of {len(found)} other bits; the nearest "
                   f"is bit {worst.other.rpartition('-')[2]}, {points(worst)}")  # fmt: skip


def points(each: Against) -> str:
    return (f"{100 * each.change:+.1f} points ({100 * each.low:+.1f} to {100 * each.high:+.1f}), "
            f"corrected p {p_text(each.p)}")


def p_text(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def more_resilient(pair: dict[str, Any], rule: str = OUTCOME) -> Verdict:
    """Horovod's rate of harm lies below DDP's."""
    pairs = pair["pairs"]
    if pairs == 0:
        return Verdict(UNDECIDED, NO_PAIR)
    if not is_judged([pair], rule):
        return not_kept()
    seen = pair_harm(pair, rule)
    first, second = seen["only_first"], seen["only_second"]
    low, high = harm_difference(pair, rule)
    word = UNDECIDED
    if -RELEVANT < low and high < RELEVANT:
        word = NO_DIFFERENCE
    elif low > 0 or high < 0:
        word = CONFIRMED if low > 0 else REFUTED
    change = rate(first - second, pairs)
    return Verdict(word,
                   f"DDP's rate of harm less Horovod's: {100 * change:+.2f} points "
                   f"({100 * low:+.2f} to {100 * high:+.2f}); harmed only with DDP {first}, only "
                   f"with Horovod {second}, in both {seen['both']} of {pairs}; p "
                   f"{p_text(mcnemar_p(first, second))}")  # fmt: skip


def pair_harm(pair: dict[str, Any], rule: str) -> dict[str, int]:
    """In how many pairs which side was harmed."""
    return pair if rule == OUTCOME else pair["lower"][rule]


def harm_difference(pair: dict[str, Any], rule: str = OUTCOME) -> tuple[float, float]:
    """The interval of the first rate of harm less the second, over the same plans."""
    seen = pair_harm(pair, rule)
    counts = [seen[name] for name in ("both", "only_first", "only_second")]
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


# The weights of the two trainings, and the parts of the optimizer's state beside them.
SLOTS = {"role-sgd-weights": ("role-sgd-momentum",),
         "role-adam-weights": ("role-adam-m", "role-adam-v")}  # fmt: skip


def more_sensitive(cells: Cells, rule: str = OUTCOME) -> Verdict:
    """The model's rate of harm lies above that of its optimizer, whose parts are taken together."""
    none = {"trials": 0, "outcomes": {}}
    whole = {f"{weights} slots": pooled([cells.get(part, none) for part in parts])
             for weights, parts in SLOTS.items()}  # fmt: skip
    return compare_slots(cells | whole, [(name, f"{name} slots") for name in SLOTS], rule)


def more_sensitive_than_each(cells: Cells, rule: str = OUTCOME) -> Verdict:
    """The model's rate of harm lies above that of each part of the optimizer."""
    return compare_slots(cells, [(name, part) for name, parts in SLOTS.items() for part in parts],
                         rule)  # fmt: skip


def compare_slots(cells: Cells, names: list[tuple[str, str]], rule: str) -> Verdict:
    if not is_judged((cells[name] for pair in names for name in pair if name in cells), rule):
        return not_kept()
    found = against(cells, names, rule)
    told = [f"{each.name.removeprefix('role-')} against {slot_words(each.other)} {points(each)}"
            for each in found]
    return Verdict(judge(found), f"the model lies above in {sum(each.above for each in found)} of "
                                 f"{len(found)} comparisons: {'; '.join(told)}")  # fmt: skip


def slot_words(name: str) -> str:
    """"momentum", or "m and v together"."""
    parts = SLOTS.get(name.removesuffix(" slots"), (name,))
    words = " and ".join(part.rpartition("-")[2] for part in parts)
    return words + " together" * (len(parts) > 1)
