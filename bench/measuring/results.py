"""Bars that figures must meet, and the file that keeps figures.

    python -m measuring.results FILE      adds this machine to a file that another program has written
"""

import json
import sys
from pathlib import Path
from typing import Any

from measuring.machines import this_run
from measuring.paired import Interval


def write(path: Path | None, figures: Any) -> None:
    """Writes the figures if a file was asked for, with the machine, the versions and the date unless they say that."""
    if path is not None:
        if isinstance(figures, dict) and not {"run", "machine", "machines"} & set(figures):
            figures = {"run": this_run()} | figures
        path.write_text(json.dumps(figures, indent=1) + "\n")


def progress(text: str) -> None:
    """Says what a long measurement has done, beside what it prints at the end."""
    print(text, file=sys.stderr, flush=True)


class Bars:
    """Prints figures and whether they meet their bars, and keeps both.

    A figure that is an interval misses a bar only if the whole interval lies beyond it.
    """

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, Any]] = {}

    @property
    def passed(self) -> bool:
        return all(one.get("passed", True) for one in self.figures.values())

    def show(self, name: str, value: float, unit: str = "") -> None:
        """A figure that has no bar."""
        self.figures[name] = {"median": value}
        print(f"  {name:52} {value:10.2f} {unit}", flush=True)

    def at_most(self, name: str, value: float | Interval, bar: float, unit: str = "") -> None:
        beyond = value.exceeds(bar) if isinstance(value, Interval) else not value <= bar
        self._keep(name, value, bar, not beyond, f"at most {bar:.4g}{unit}")

    def at_least(self, name: str, value: float | Interval, bar: float, unit: str = "") -> None:
        beyond = value.falls_below(bar) if isinstance(value, Interval) else not value >= bar
        self._keep(name, value, bar, not beyond, f"at least {bar:.4g}{unit}")

    def _keep(self, name: str, value: float | Interval, bar: float, passed: bool,
              expected: str) -> None:
        middle = value.median if isinstance(value, Interval) else value
        self.figures[name] = {"median": middle, "bar": bar, "passed": passed}
        told = str(value) if isinstance(value, Interval) else f"{value:.4g}"
        print(f"  {name:52} {told:>10}; expected {expected}  {'PASS' if passed else 'FAIL'}",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(Path(name), json.loads(Path(name).read_text()) | {"run": this_run()})
