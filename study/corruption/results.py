"""Makes the compact results of the study from the folders that `holdfast campaign run` wrote.

The folders of all campaigns need not be on one machine: those that are there are laid over the
results that are known, and the cells of all others stay as they are.

Beside the folder of each campaign lies a note of the machine on which its trials ran. Another
machine computes other last bits, so a campaign has one machine, and only campaigns of the same
machine are compared pair by pair.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from cells import Cell, all_campaigns, all_cells
from intervals import median_interval

RESULTS = Path(__file__).with_name("results.json")

# An outcome is harm if it stands in this list.
HARM = ("refused", "crashed", "timed out", "N-EV", "degraded")
OUTCOMES = (*HARM, "spiked", "benign", "masked")
LOST = ("refused", "crashed", "timed out", "N-EV")  # outcomes without parameters to compare
# An accuracy is low if it lies so far below golden's. A millionth is left to rounding, as in
# `holdfast campaign analyse`: 0.95 - 0.90 is less than 0.05.
LOW = 0.05 - 1e-6

# Cells that flip the same bits, and so are compared trial by trial.
PAIRS = (("ddp-2", "horovod-2"), ("ddp-4", "horovod-4"), ("ddp-4", "ddp-4-silent"),
         ("horovod-4", "horovod-4-divided"), ("ddp-4", "horovod-4-divided"),
         ("alone", "pipeline-2"), ("alone", "pipeline-2-whole"),
         ("alone", "keras"), ("alone", "chainer"))  # fmt: skip
BOUND = 0.3  # the log10 of a ratio that counts as alike

# The highest bit of the exponent, by dtype.
TOP_BITS = {"F16": 14, "BF16": 14, "F32": 30, "F64": 62}


Machine = dict[str, str]


def machine_note(folder: Path) -> Path:
    """Where the machine of a campaign is written."""
    return folder.with_name(f"{folder.name}.machine.json")


def read_machine(folder: Path) -> Machine:
    """The machine of a campaign; empty if it is not known."""
    note = machine_note(folder)
    return json.loads(note.read_text()) if note.exists() else {}


def machine_words(machine: Machine) -> str:
    return ", ".join(f"{name} {value}" for name, value in machine.items()) or "an unknown machine"


class Campaign:
    """The trials of a cell that are finished."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.cell, self.machine = cell, read_machine(folder)
        self.settings = json.loads((folder / "campaign.json").read_text())
        lines = (folder / "trials.jsonl").read_text().splitlines(keepends=True)
        # The last line may be torn, because a campaign can be killed.
        read = [json.loads(line) for line in lines if line.endswith("\n")]
        self.trials = {(cell.part, trial["trial"]): trial for trial in read
                       if trial["trial"] < cell.trials}  # fmt: skip

    def add(self, other: "Campaign") -> None:
        """Adds the trials of another part of the same cell."""
        if (self.machine, self.golden) != (other.machine, other.golden):
            raise ValueError(f"{other.cell.name}: its golden run or its machine is not that of "
                             f"{self.cell.name}; expected equal bits: run it --anew")
        self.trials |= other.trials

    @property
    def golden(self) -> list[dict[str, Any]]:
        """The lines of the golden run's log."""
        return self.settings["golden"]

    def summaries(self) -> dict[str, dict[str, Any]]:
        """By the name of a cell. A campaign that takes bits in turn has a cell for each bit."""
        trials = list(self.trials.values())
        if not self.cell.turns:
            return {self.cell.stem: self.summary(trials)}
        parts: dict[int, list[dict]] = {}
        for trial in trials:
            parts.setdefault(trial["flips"][0]["bits"][0], []).append(trial)
        return {self.cell.cell_of(bit): self.summary(parts[bit]) for bit in sorted(parts)}

    def summary(self, trials: list[dict]) -> dict[str, Any]:
        first, last = self.golden[0], self.golden[-1]
        low = sum(first["accuracy"] - number(trial["first_accuracy"]) >= LOW for trial in trials
                  if trial.get("first_accuracy") is not None)  # fmt: skip
        return {
            "trials": len(trials),
            "outcomes": count(trials),
            "struck": count([trial for trial in trials if is_struck(trial)]),
            "signed": count([trial for trial in trials
                             if is_struck(trial, above=1) and not is_struck(trial)]),
            "low_first": low,
            "golden": {"first": first["accuracy"], "final": last["accuracy"],
                       "loss": last["loss"]},
            "seconds": round(sum(trial["seconds"] for trial in trials), 1),
        }


def count(trials: list[dict]) -> dict[str, int]:
    seen = Counter(trial["outcome"] for trial in trials)
    unknown = set(seen) - set(OUTCOMES)
    if unknown:
        raise ValueError(f"outcome {unknown.pop()}: expected one of {', '.join(OUTCOMES)}")
    return {outcome: seen[outcome] for outcome in OUTCOMES if seen[outcome]}


def is_struck(trial: dict, above: int = 0) -> bool:
    """Whether the highest bit of an exponent was flipped, or the bit so far above it: 1 is the
    sign."""
    return any(flip["dtype"] in TOP_BITS
               and int(flip["mask"], 16) >> (TOP_BITS[flip["dtype"]] + above) & 1
               for flip in trial["flips"])  # fmt: skip


def number(value: float | str | None) -> float:
    """A number of a log. JSON has no NaN, so null stands for what is not finite."""
    return math.nan if value is None else float(value)


def harmed(trial: dict) -> bool:
    return trial["outcome"] in HARM


def compare(first: Campaign, second: Campaign) -> dict[str, Any]:
    """What two cells made of the same plans."""
    both = sorted(first.trials.keys() & second.trials.keys())
    pairs = [(first.trials[trial], second.trials[trial]) for trial in both]
    for one, other in pairs:
        if flipped(one) != flipped(other):
            raise ValueError(f"{first.cell.name} and {second.cell.name}, trial {one['trial']}: the "
                             "flips differ; expected the same plans")
    kept = [(one, other) for one, other in pairs
            if one["outcome"] not in LOST and other["outcome"] not in LOST]  # fmt: skip
    return {
        "pairs": len(pairs),
        "only_first": sum(harmed(one) and not harmed(other) for one, other in pairs),
        "only_second": sum(harmed(other) and not harmed(one) for one, other in pairs),
        "both": sum(harmed(one) and harmed(other) for one, other in pairs),
        "same_outcome": sum(one["outcome"] == other["outcome"] for one, other in pairs),
        "same_bits": sum(is_finite(one) and have_equal_bits(one, other)
                         for one, other in kept),
        "same_golden": first.golden == second.golden,
        "overflow": sum((one["outcome"] == "N-EV") != (other["outcome"] == "N-EV")
                        for one, other in pairs),
        "lost": len(pairs) - len(kept),
        "spread": spread(kept),
    }  # fmt: skip


def flipped(trial: dict) -> list[tuple[str, str, str]]:
    """Which bits of which numbers were flipped. Names and places differ between frameworks."""
    # Campaigns of earlier versions say old and new.
    return sorted((flip["mask"], flip.get("before", flip.get("old")),
                   flip.get("after", flip.get("new"))) for flip in trial["flips"])


def is_finite(trial: dict) -> bool:
    """Whether all numbers that a trial left are finite. All NaNs are written alike, so they say
    nothing about bits."""
    left = [trial["final_loss"], trial["final_accuracy"], *(trial.get("distance") or {}).values()]
    return all(math.isfinite(number(each)) for each in left)


def have_equal_bits(one: dict, other: dict) -> bool:
    """Whether two trials left the same numbers. Distances count if both have them."""
    names = ["outcome", "final_loss", "final_accuracy"]
    if one.get("distance") and other.get("distance"):
        names.append("distance")
    return all(str(one[name]) == str(other[name]) for name in names)


def spread(pairs: list[tuple[dict, dict]]) -> dict[str, dict[str, Any]]:
    """By layer and step: the log10 of the second distance to golden divided by the first."""
    out: dict[str, dict[str, Any]] = {}
    names = [name for name in pairs[0][0].get("distance") or {}
             if name in (pairs[0][1].get("distance") or {})] if pairs else []  # fmt: skip
    for name in names:
        ratios = [log_ratio(*(number(each["distance"][name]) for each in pair)) for pair in pairs]
        known = [ratio for ratio in ratios if not math.isnan(ratio)]
        if not known:
            continue
        median, low, high = (rounded(value) for value in median_interval(known))
        out[name] = {"pairs": len(known), "above": sum(ratio >= BOUND for ratio in known),
                     "below": sum(ratio <= -BOUND for ratio in known), "median": median,
                     "low": low, "high": high}  # fmt: skip
    return out


def log_ratio(first: float, second: float) -> float:
    """Equal bits have the ratio 1. Distances that are not finite have no ratio."""
    if not (math.isfinite(first) and math.isfinite(second)):
        return math.nan
    if first == second:
        return 0.0
    if first == 0 or second == 0:
        return math.inf if first == 0 else -math.inf
    return math.log10(second / first)


def rounded(value: float) -> float | str:
    """JSON has no infinity, so it is written as a word, which float() reads."""
    return round(value, 6) if math.isfinite(value) else str(value)


def collect(work: Path) -> dict[str, Any]:
    """The compact results of all cells that have trials."""
    found = read_all(work)
    machines = extend_machines({}, (campaign.machine for campaign in found.values()))
    pairs = {f"{first} {second}": compare(found[first], found[second])
             for first, second in PAIRS if first in found and second in found
             and found[first].machine == found[second].machine}  # fmt: skip
    cells: dict[str, dict[str, Any]] = {}
    for campaign in found.values():
        name = letter_of(machines, campaign.machine)
        cells |= {cell: {"machine": name} | row for cell, row in campaign.summaries().items()}
    return {"machines": machines, "pairs": pairs, "cells": cells}


def read_all(work: Path) -> dict[str, Campaign]:
    """The campaigns that have trials, by name; the parts of a cell as one."""
    found: dict[str, Campaign] = {}
    for cell in all_campaigns():
        if (work / cell.name / "trials.jsonl").exists():
            campaign = Campaign(cell, work / cell.name)
            if cell.stem in found:
                found[cell.stem].add(campaign)
            else:
                found[cell.stem] = campaign
    return found


def merge(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The results `before`, overlaid with those that were collected.

    A cell is taken from `found` if it has at least as many trials there. A pair is taken if both
    of its cells were, and stays if neither was: otherwise its cells are not those it compares.
    """
    taken = {name for name, row in found["cells"].items()
             if row["trials"] >= before["cells"].get(name, {"trials": 0})["trials"]}  # fmt: skip
    letters = extend_machines(before["machines"], found["machines"].values())
    cells = dict(before["cells"])
    for name in taken:
        row = found["cells"][name]
        cells[name] = row | {"machine": letter_of(letters, found["machines"][row["machine"]])}
    pairs = {name: row for name, row in before["pairs"].items() if taken.isdisjoint(name.split())}
    pairs |= {name: row for name, row in found["pairs"].items() if taken.issuperset(name.split())}
    used = {row["machine"] for row in cells.values()}
    return {"machines": {name: letters[name] for name in sorted(used)},
            "pairs": ordered(pairs, map(" ".join, PAIRS)),
            "cells": ordered(cells, (cell.name for cell in all_cells()))}  # fmt: skip


def extend_machines(known: dict[str, Machine], more: Iterable[Machine]) -> dict[str, Machine]:
    """Known machines keep their letters, and new ones get letters that are free."""
    out = dict(known)
    free = (name for name in ascii_uppercase if name not in known)
    for machine in more:
        if machine not in out.values():
            out[next(free)] = machine
    return out


def letter_of(machines: dict[str, Machine], machine: Machine) -> str:
    return next(name for name, each in machines.items() if each == machine)


def ordered(rows: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The rows in the order of the names, then those of other names."""
    return {name: rows[name] for name in names if name in rows} | rows


def read(path: Path = RESULTS) -> dict[str, Any]:
    """The results that are known: none if there is no such file."""
    if not path.exists():
        return {"machines": {}, "pairs": {}, "cells": {}}
    return json.loads(path.read_text())


def write(results: dict[str, Any], path: Path = RESULTS) -> None:
    """One line for each cell and pair, so that differences can be read."""
    parts = []
    for key, value in results.items():
        rows = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in value.items()]
        parts.append(f"{json.dumps(key)}: {{\n" + ",\n".join(rows) + "\n }")
    path.write_text("{" + ",\n ".join(parts) + "}\n")
