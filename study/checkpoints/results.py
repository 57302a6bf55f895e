"""What the study has found: the file that keeps it, and the lines that tell it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from states import CRASHES, HANGS, LOST, NEWEST, PREVIOUS, VERDICTS, WRONG

Result = dict[str, Any]
LOUD = (LOST, WRONG, CRASHES, HANGS)  # verdicts that cost a user both checkpoints, or worse
GOOD = (NEWEST, PREVIOUS)


class Results:
    """The cells that have been measured, on one machine. Each change is in the file at once."""

    def __init__(self, path: Path, machine: Mapping[str, Any]) -> None:
        self.path = path
        self.found: Result = {"machine": dict(machine), "cells": {}}
        if path.exists():
            self.found = json.loads(path.read_text())
            if self.found["machine"] != dict(machine):
                raise ValueError(f"{path}: its cells were measured on {self.found['machine']}, and this is "
                                 f"{dict(machine)}; expected the same machine, or --anew to begin again")

    @property
    def cells(self) -> dict[str, Result]:
        return self.found["cells"]

    def is_done(self, name: str) -> bool:
        return name in self.cells and "not_run" not in self.cells[name]

    def keep(self, name: str, result: Result) -> None:
        self.cells[name] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".tmp")
        fresh.write_text(json.dumps(self.found, indent=1, sort_keys=True) + "\n")
        os.replace(fresh, self.path)


def is_safe(result: Result, *kinds: str) -> bool:
    """Whether the engine resumes by itself from all that these kinds of damage leave. False if nothing is known."""
    seen = [result[kind] for kind in kinds if result.get(kind)]
    return bool(seen) and all(set(each) <= set(GOOD) for each in seen)


def tell(name: str, result: Result) -> str:
    """One line for a person who waits."""
    if "not_run" in result:
        return f"{name}: not run, {result['not_run']}"
    if "failed" in result:
        return f"{name}: failed, {result['failed']}"
    return f"{name}: " + "; ".join(
        f"{sum(result[kind].values())} {word}: {tell_verdicts(result[kind])}"
        for kind, word in (("kill", "kills"), ("power", "power cuts"), ("full", "full disks"), ("rank", "lost ranks"))
        if result.get(kind))  # fmt: skip


def tell_verdicts(counts: Mapping[str, int]) -> str:
    """ "3 newest, 1 previous, 23 LOST" """
    order = (*VERDICTS, *(set(counts) - set(VERDICTS)))
    return ", ".join(f"{counts[verdict]} {verdict.upper() if verdict in LOUD or verdict not in VERDICTS else verdict}"
                     for verdict in order if verdict in counts)  # fmt: skip

