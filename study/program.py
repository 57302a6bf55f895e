"""What the scripts of the studies share: the holdfast program, and tables."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))
from measuring.options import parser  # noqa: E402: it is in another folder
from measuring.pages import Section, table  # noqa: E402

__all__ = ["Program", "Section", "data", "parser", "table"]


class Program:
    """The holdfast program, asked for JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def interval(self, **options: Any) -> dict[str, Any]:
        return self._ask("interval", options)

    def simulate(self, schedules: Iterable[str], **options: Any) -> dict[str, dict[str, Any]]:
        """What each schedule cost, in the order of the schedules."""
        answer = self._ask("simulate", {"schedules": ",".join(schedules), **options})
        return {each["schedule"]: each for each in answer["schedules"]}

    def plan(self, **options: Any) -> dict[str, Any]:
        """An option without a value is an empty list."""
        return self._ask("plan", options)

    def _ask(self, verb: str, options: dict[str, Any]) -> dict[str, Any]:
        command = [str(self.path), verb, "--json"]
        for name, value in options.items():
            values = value if isinstance(value, list) else [value]
            command += ["--" + name.replace("_", "-"), *map(str, values)]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def data(head: list[str], rows: Iterable[list[str]]) -> str:
    """A table as a file of comma-separated values, none of which needs quotes."""
    return "".join(",".join(row) + "\n" for row in (head, *rows))
