"""What the study has found: the file that keeps it, and the lines that tell it."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from measuring.paired import USUAL, Interval, interval
from states import CRASHES, HANGS, HARMLESS, LOST, NEWEST, NOTICED, PREVIOUS, VERDICTS, WRONG

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

    def is_done(self, name: str, quick: bool = True) -> bool:
        """Whether it has been measured. What a quick study has measured is measured again by one that is not."""
        found = self.cells.get(name, {"not_run": ""})
        return "not_run" not in found and (quick or "quick" not in found)

    def keep(self, name: str, result: Result) -> None:
        # Five digits of a time are enough, and keep the file small.
        self.cells[name] = json.loads(json.dumps(result), parse_float=lambda text: float(f"{float(text):.5g}"))
        self._write()

    def keep_device(self, rates: Mapping[str, Any]) -> None:
        self.found["device"] = dict(rates)
        self._write()

    def _write(self) -> None:
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
    return f"{name}: " + TELLERS[name.partition("-")[0]](result)


def _tell_crash(result: Result) -> str:
    return "; ".join(
        f"{sum(result[kind].values())} {word}: {tell_verdicts(result[kind])}"
        for kind, word in (("kill", "kills"), ("power", "power cuts"), ("full", "full disks"), ("rank", "lost ranks"))
        if result.get(kind))  # fmt: skip


def _tell_formats(result: Result) -> str:
    times = {name: median(values) for name, values in result["seconds"].items()}
    return (f"{result['bytes'] / 1e6:.1f} MB, {result['bytes'] - result['exact']:+,} B; save {times['call']:.2f} s, synced "
            f"{times['synced']:.2f} s, cold load {times['load']:.2f} s{'' if result['equal'] else ', WRONG BITS'}")


def _tell_cost(result: Result) -> str:
    return "; ".join(f"every {interval} steps: a save adds {1e3 * added(block).median:.0f} ms"
                     for interval, block in result["blocks"].items())  # fmt: skip


def _tell_restart(result: Result) -> str:
    return ", ".join(f"{name} {median(values):.2f} s" for name, values in result["seconds"].items())


def _tell_bits(result: Result) -> str:
    return ", ".join(f"{word} at the {cut} of an epoch" for cut, word in result["bits"].items())


def _tell_flips(result: Result) -> str:
    return "; ".join(f"{place}: {tell_verdicts(result[place])}" for place in ("tensors", "anywhere") if place in result)


def _tell_scale(result: Result) -> str:
    return "; ".join(f"{count} ranks {median(one['seconds']):.2f} s" for count, one in result["ranks"].items())


TELLERS = {"crash": _tell_crash, "formats": _tell_formats, "cost": _tell_cost, "restart": _tell_restart,
           "bits": _tell_bits, "flips": _tell_flips, "scale": _tell_scale}  # fmt: skip


def in_percent(found: Interval) -> str:
    """A share with its interval: "58 % (50 to 63)"."""
    return _told(found, 100, " %", ".0f")


def in_milliseconds(found: Interval) -> str:
    """Seconds with their interval: "56 ms (-14 to 79)"."""
    return _told(found, 1e3, " ms", ",.0f")


def _told(found: Interval, factor: float, unit: str, digits: str) -> str:
    middle, low, high = (factor * value for value in found[:3])
    if found.covers == 0:
        return f"{middle:{digits}}{unit} (once)"
    share = "" if found.covers >= USUAL else f", {math.floor(100 * found.covers)} %"
    return f"{middle:{digits}}{unit} ({low:{digits}} to {high:{digits}}{share})"


def ratios(pairs: Sequence[Sequence[float]]) -> Interval:
    """How many times as long the first of a pair takes as the second."""
    return interval([first / second for first, second in pairs])


def added(block: Result) -> Interval:
    """The seconds that one save adds to a block of steps."""
    both = zip(block["with"], block["without"], strict=True)
    return interval([(saves - none) / block["saves"] for saves, none in both])


def tell_verdicts(counts: Mapping[str, int]) -> str:
    """ "3 newest, 1 previous, 23 LOST" """
    known = (NOTICED, HARMLESS, *VERDICTS)
    order = (*known, *(set(counts) - set(known)))
    return ", ".join(f"{counts[verdict]} {verdict.upper() if verdict in LOUD or verdict not in known else verdict}"
                     for verdict in order if verdict in counts)  # fmt: skip

