"""The file of figures of bench/recovery_bench.py, and on which machine each part was measured."""

import json
import os
import platform
import sys
from pathlib import Path

from paired import busy_cores

BUSY = 0.5  # the share of the cores at work above which a machine is not quiet
SAME = ("machine", "processor", "cores")  # what two machines have in common if they are alike


def this_machine() -> dict:
    return {"machine": platform.machine(), "processor": processor(), "cores": os.cpu_count()}


def processor() -> str:
    """The name of the processor; "" where the system does not tell it, as on ARM."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return ""


def are_alike(one: dict, other: dict) -> bool:
    return all(one[key] == other[key] for key in SAME)


def name_of(machine: dict) -> str:
    kind = f"{machine['machine']} ({machine['processor']})" if machine["processor"] else machine["machine"]
    return f"{kind} with {machine['cores']} cores"


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
            for part, machine in machines.items() if machine["load"] > BUSY * machine["cores"]]  # fmt: skip
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
        if self._path:
            self._path.write_text(json.dumps(self.seen, indent=1) + "\n")

    def totals_of_this_machine(self) -> list[dict]:
        """The sequences that are known. They may be continued here only if they come from here."""
        rows, machine = self.seen.get("totals", []), self.seen["machines"].get("totals")
        if rows and not (machine and are_alike(machine, this_machine())):
            sys.exit(f"recovery_bench: {self._path}: the totals come from "
                     f"{name_of(machine) if machine else 'a machine that is not named'}; expected "
                     f"{name_of(this_machine())}, because times of two machines cannot be merged; "
                     "--anew measures all sequences here")  # fmt: skip
        self._load = max(self._load, machine["load"] if rows else 0.0)
        return rows
