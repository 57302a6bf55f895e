"""What the processes of a rehearsed training have recorded (holdfast/torch/loop/rehearsal.py)."""

import contextlib
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Record = dict[str, Any]


@dataclass
class RankRecords:
    """The records of one rank in one life, of the Checkpointers of one run."""

    opened: list[Record] = field(default_factory=list)  # Checkpointers, in the order of their making
    resumed: Record | None = None  # what the first resume() of the process has brought back
    steps: dict[int, Record] = field(default_factory=dict)  # the last record of each step
    calls: Counter[int] = field(default_factory=Counter)  # how often each step was recorded
    waits: Record | None = None  # the rank waits to be ended
    warnings: list[str] = field(default_factory=list)

    @property
    def world(self) -> int:
        return int(self.opened[-1]["world"]) if self.opened else 1

    def add(self, record: Record) -> None:
        """Takes the next record."""
        kind = record["kind"]
        if kind == "step":
            self.steps[record["step"]] = record
            self.calls[record["step"]] += 1
        elif kind == "warning":
            self.warnings.append(record["text"])
        elif kind == "open":
            if self.opened and self.opened[-1]["pid"] != record["pid"]:
                self.resumed = None  # the process takes the place of a lost rank
            self.opened.append(record)
        elif kind == "resumed":
            self.resumed = self.resumed or record
        elif kind == "waits":
            self.waits = record


class LifeRecords:
    """The records of all ranks of a life, which grow while it runs.

    A script may have several Checkpointers. `ranks` has the records of one of them, `part`: the one
    that is given, or else the one with the most steps.
    """

    def __init__(self, folder: Path, part: int | None = None) -> None:
        self._folder, self._part = folder, part
        self._read: dict[str, int] = {}  # how much of each file was read
        self.parts: dict[int, dict[int, RankRecords]] = {}  # by Checkpointer, then by rank

    @property
    def part(self) -> int:
        if self._part is not None:
            return self._part
        return max(sorted(self.parts), key=lambda one: len(_numbers(self.parts[one])), default=0)

    @property
    def ranks(self) -> dict[int, RankRecords]:
        return self.parts.get(self.part, {})

    @property
    def others(self) -> dict[int, dict[int, RankRecords]]:
        """The records of the other Checkpointers that made steps."""
        return {number: part for number, part in self.parts.items()
                if number != self.part and _numbers(part)}

    def look(self) -> None:
        """Reads what was added since the last look."""
        for path in self._folder.glob("rank-*.jsonl"):
            rank = int(path.stem.rpartition("-")[2])
            with open(path) as file:
                file.seek(self._read.get(path.name, 0))
                text = file.read()
            whole, _, rest = text.rpartition("\n")
            self._read[path.name] = self._read.get(path.name, 0) + len(text) - len(rest)
            for line in whole.splitlines():
                with contextlib.suppress(ValueError):  # two processes of a rank wrote at once
                    record = json.loads(line)
                    part = self.parts.setdefault(record.get("part", 0), {})
                    part.setdefault(rank, RankRecords()).add(record)

    @property
    def all_records(self) -> list[RankRecords]:
        """The records of all Checkpointers and ranks."""
        return [one for _, part in sorted(self.parts.items()) for one in part.values()]

    @property
    def has_checkpointer(self) -> bool:
        return any(one.opened for one in self.all_records)

    @property
    def all_wait(self) -> bool:
        """True if every rank of the job waits to be ended."""
        waiting = [one for one in self.all_records if one.waits]
        return bool(waiting) and len(waiting) >= max(one.world for one in self.all_records)

    @property
    def any_waits(self) -> bool:
        return any(one.waits for one in self.all_records)

    @property
    def was_killed(self) -> bool:
        """True if the life came to the place where it was to be killed."""
        return any(one.waits and one.waits["why"] == "kill" for one in self.all_records)

    @property
    def numbers(self) -> list[int]:
        """The steps that were made, in their order, as the rank with the most of them has them."""
        return _numbers(self.ranks)

    @property
    def calls_of_last(self) -> int:
        """How often the last of these steps was recorded."""
        numbers = self.numbers
        return max((one.calls[numbers[-1]] for one in self.ranks.values()), default=1)

    @property
    def warnings(self) -> list[str]:
        """What Holdfast warned of, each text once."""
        return list(dict.fromkeys(text for one in self.all_records for text in one.warnings))

    @property
    def unsaved(self) -> list[str]:
        """What took part and was not saved as it should be, as the processes knew at their ends."""
        return list(dict.fromkeys(text for one in self.all_records if one.waits
                                  for text in one.waits["unsaved"]))


def _numbers(ranks: dict[int, RankRecords]) -> list[int]:
    return max((list(one.steps) for one in ranks.values()), key=len, default=[])
