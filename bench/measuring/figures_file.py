"""A file of figures whose parts may be measured in several runs, and on which machine each was measured."""

import json
import sys
from pathlib import Path

from measuring import results
from measuring.machines import are_alike, busy_cores, is_busy, name_of, this_machine


def machines_text(machines: dict[str, dict]) -> str:
    """What a reader of the figures must know about the machines; "" if there was one, and it was quiet."""
    parts: dict[str, list[str]] = {}
    for part, machine in machines.items():
        parts.setdefault(name_of(machine), []).append(f"*{part}*")
    text = ""
    if len(parts) > 1:
        text = ("The parts of these figures come from different machines; times of one cannot be "
                "compared with times of another: "
                + "; ".join(f"{', '.join(own)} on {name}" for name, own in parts.items()) + ".\n")  # fmt: skip
    busy = [f"*{part}* ({machine['load']:.1f} of {machine['cores']} cores were at work)"
            for part, machine in machines.items() if is_busy(machine)]  # fmt: skip
    if busy:
        text += ("The machine was busy with other work while these parts were measured, so all their "
                 f"times are too long: {', '.join(busy)}.\n")  # fmt: skip
    return text


class Figures:
    """The figures, and the machine on which each part was measured. A file keeps them."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._load = path, busy_cores()
        self.seen: dict = {"machines": {}}
        if path and path.exists():
            self.seen |= json.loads(path.read_text())

    def keep(self, part: str, value: object, machine: dict | None = None) -> None:
        self.seen[part] = value
        self.seen["machines"][part] = machine or this_machine() | {"load": self._load}
        self.write()

    def write(self) -> None:
        results.write(self._path, self.seen)

    def of_this_machine(self, part: str) -> list[dict]:
        """The rows of a part that are known. They may be continued here only if they come from here."""
        rows, machine = self.seen.get(part, []), self.seen["machines"].get(part)
        if rows and not (machine and are_alike(machine, this_machine())):
            sys.exit(f"{self._path}: the part {part} comes from "
                     f"{name_of(machine) if machine else 'a machine that is not named'}; expected "
                     f"{name_of(this_machine())}, because times of two machines cannot be merged; "
                     "--anew measures it here")  # fmt: skip
        self._load = max(self._load, machine["load"] if rows else 0.0)
        return rows
