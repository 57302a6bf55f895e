"""Makes the compact results of the study from the folders that `holdfast campaign run` wrote.

The folders of all campaigns need not be on one machine: those that are there are laid over the
results that are known, and the cells of all others stay as they are.

Beside the folder of each campaign lies a note of the machine on which its trials ran. Another
machine computes other last bits, so a campaign has one machine, and only campaigns of the same
machine are compared pair by pair.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from cells import Cell, all_campaigns, all_cells

RESULTS = Path(__file__).with_name("results.json")

# The rules of `holdfast campaign analyse --rule`: the papers' metric, which is the accuracy at the end
# and here must be so many points lower, and our wider rule, which counts outcomes.
ACCURACY = ("accuracy:5", "accuracy:1")
OUTCOME = "outcome"

# Cells that flip the same bits, and so are compared trial by trial.
PAIRS = (("ddp-2", "horovod-2"), ("ddp-4", "horovod-4"), ("ddp-4", "ddp-4-silent"),
         ("horovod-4", "horovod-4-divided"), ("ddp-4", "horovod-4-divided"),
         ("alone", "pipeline-2"), ("alone", "pipeline-2-whole"),
         ("alone", "keras"), ("alone", "chainer"))  # fmt: skip

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


def analyse(*folders: Path, **options: Any) -> Mapping[str, Any]:
    """What `holdfast campaign analyse` counts."""
    # Imported here, because archive.py also runs where Holdfast is not installed.
    from holdfast import campaign

    return campaign.analyse(*folders, **options)


class Campaign:
    """The folders of a cell, by part."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.cell, self.machine, self.parts = cell, read_machine(folder), {cell.part: folder}

    def add(self, other: "Campaign") -> None:
        """Adds another part of the same cell."""
        if self.machine != other.machine:
            raise ValueError(f"{other.cell.name}: its machine is not that of {self.cell.name}; "
                             "expected equal bits: run it --anew")
        self.parts |= other.parts

    def summaries(self) -> dict[str, dict[str, Any]]:
        """By the name of a cell. A campaign that takes bits in turn has a cell for each bit."""
        seen = analyse(*self.parts.values(), parts=True)
        lower = {rule: analyse(*self.parts.values(), parts=True, rule=rule) for rule in ACCURACY}
        if not self.cell.turns:
            counts = {name: each["count"] for name, each in seen["outcomes"].items()}
            outcomes = {name: number for name, number in counts.items() if number}
            return {self.cell.stem: summary({**seen, "outcomes": outcomes}, seen["golden"], lower)}
        groups = by_bit(seen)
        lower_groups = {rule: by_bit(each) for rule, each in lower.items()}
        return {self.cell.cell_of(bit): summary(
                    groups[bit], seen["golden"],
                    {rule: each[bit] for rule, each in lower_groups.items()})
                for bit in sorted(groups)}  # fmt: skip


def by_bit(seen: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    return {int(group["name"].split()[-1]): group for group in seen["by_bit"]}


def summary(group: Mapping[str, Any], golden: dict[str, float],
            lower: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The row of a cell. `lower` is the same group under the rules of accuracy."""
    return {
        "trials": group["trials"],
        "outcomes": group["outcomes"],
        "struck": group["top_exponent"],
        "signed": group["sign_only"],
        "low_first": (group["low_after_loading"] or {"count": 0})["count"],
        "lower": {rule: {"harm": each["harm"]["count"], "struck": each["harm_top_exponent"],
                         "signed": each["harm_sign_only"]} for rule, each in lower.items()},
        "golden": {"first": golden["first_accuracy"], "final": golden["final_accuracy"],
                   "loss": golden["final_loss"]},
        "seconds": round(group["seconds"], 1),
    }  # fmt: skip


def compare(first: Campaign, second: Campaign) -> dict[str, Any]:
    """What two cells made of the same plans."""
    parts = sorted(first.parts.keys() & second.parts.keys())
    # Ratios of distances are those of the second to the first, so the second comes first.
    seen = {rule: analyse(*(second.parts[part] for part in parts),
                          against=[first.parts[part] for part in parts], rule=rule,
                          converted=first.cell.job.framework != second.cell.job.framework)
            for rule in (OUTCOME, *ACCURACY)}  # fmt: skip
    lower = {rule: harm_counts(seen[rule]) for rule in ACCURACY}
    seen = seen[OUTCOME]
    return {"pairs": seen["pairs"], **harm_counts(seen), "same_outcome": seen["same_outcome"],
            "same_bits": seen["same_bits"], "same_golden": seen["same_golden"],
            "overflow": seen["nev_in_one_only"], "lost": seen["without_end"], "lower": lower,
            "spread": {row["tensor"]: spread(row) for row in seen["distances"]}}  # fmt: skip


def harm_counts(seen: Mapping[str, Any]) -> dict[str, int]:
    """In how many pairs which side was harmed. The first campaign of a pair is B of the analysis."""
    harm = seen["harm"]
    return {"only_first": harm["only_b"], "only_second": harm["only_a"], "both": harm["both"]}


def spread(row: Mapping[str, Any]) -> dict[str, Any]:
    """Of a layer and step: the log10 of the second distance to golden divided by the first."""
    low, high = row["interval"]
    return {"pairs": row["pairs"], "above": row["above"], "below": row["below"],
            "median": rounded(row["median_log10_ratio"]), "low": rounded(low),
            "high": rounded(high)}  # fmt: skip


def rounded(value: float | str) -> float | str:
    """JSON has no infinity, so it is written as a word, which float() reads."""
    return round(value, 6) if math.isfinite(float(value)) else str(float(value))


def collect(work: Path) -> dict[str, Any]:
    """The compact results of all cells that have trials."""
    found = read_all(work)
    machines = extend_machines({}, (campaign.machine for campaign in found.values()))
    pairs = {f"{first} {second}": compare(found[first], found[second])
             for first, second in PAIRS if first in found and second in found
             and found[first].machine == found[second].machine
             and found[first].parts.keys() & found[second].parts.keys()}  # fmt: skip
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
