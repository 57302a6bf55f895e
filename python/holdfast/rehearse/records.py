"""What the processes of a rehearsed training have recorded (holdfast/torch/loop/rehearsal.py)."""

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Record = dict[str, Any]


@dataclass
class RankRecords:
    """The records of one rank in one life."""

    opened: list[Record] = field(default_factory=list)  # Checkpointers, in the order of their making
    resumed: Record | None = None  # what the last resume() has brought back
    steps: dict[int, Record] = field(default_factory=dict)  # the last record of each step
    waits: Record | None = None  # the rank waits to be ended
    warnings: list[str] = field(default_factory=list)
    _is_new_process: bool = True  # it has recorded no step yet

    @property
    def world(self) -> int:
        return int(self.opened[-1]["world"]) if self.opened else 1

    def add(self, record: Record) -> None:
        """Takes the next record."""
        kind = record["kind"]
        if kind == "step":
            self._add_step(record)
        elif kind == "warning":
            self.warnings.append(record["text"])
        elif kind == "open":
            self.opened.append(record)
            self._is_new_process = True
        elif kind == "resumed":
            self.resumed = record
        elif kind == "waits":
            self.waits = record


    def _add_step(self, record: Record) -> None:
        """Micro-batches may share the number of a step: then their inputs are those of one step."""
        before = self.steps.pop(record["step"], None)
        if before is not None and not self._is_new_process:
            record = {**record, "inputs": before["inputs"] + record["inputs"],
                      "generators": before["generators"] or record["generators"]}
        self.steps[record["step"]] = record
        self._is_new_process = False


class LifeRecords:
    """The records of all ranks of a life, which grow while it runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}  # how much of each file was read
        self.ranks: dict[int, RankRecords] = {}

    def look(self) -> None:
        """Reads what was added since the last look."""
        for path in self._folder.glob("rank-*.jsonl"):
            rank = self.ranks.setdefault(int(path.stem.rpartition("-")[2]), RankRecords())
            with open(path) as file:
                file.seek(self._read.get(path.name, 0))
                text = file.read()
            whole, _, rest = text.rpartition("\n")
            self._read[path.name] = self._read.get(path.name, 0) + len(text) - len(rest)
            for line in whole.splitlines():
                with contextlib.suppress(ValueError):  # two processes of a rank wrote at once
                    rank.add(json.loads(line))

    @property
    def has_checkpointer(self) -> bool:
        return any(one.opened for one in self.ranks.values())

    @property
    def all_wait(self) -> bool:
        """True if every rank of the job waits to be ended."""
        waiting = [one for one in self.ranks.values() if one.waits]
        return bool(waiting) and len(waiting) >= max(one.world for one in self.ranks.values())

    @property
    def any_waits(self) -> bool:
        return any(one.waits for one in self.ranks.values())

    @property
    def numbers(self) -> list[int]:
        """The steps that were made, in their order, as the rank with the most of them has them."""
        return max((list(one.steps) for one in self.ranks.values()), key=len, default=[])

    @property
    def warnings(self) -> list[str]:
        """What Holdfast warned of, each text once."""
        return list(dict.fromkeys(text for one in self.ranks.values() for text in one.warnings))
