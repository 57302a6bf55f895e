"""The tables of docs/studies/elastic.md that were measured, made from the figures in bench/results.

A benchmark whose figures are not there yet gives a line that says so.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from program import table

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))
from measuring.machines import name_of  # noqa: E402: it is in another folder

# The benchmark of each table, by the name of the table. Its figures are in a file of that name.
COMMANDS = {
    "layout_change": "build/release/bench/layout_change_bench",
    "layout_change_rivals": "python bench/layout_change_rivals_bench.py",
    "reshard": "python bench/reshard_bench.py",
}


def figure_text(figure: dict[str, Any]) -> str:
    if "GB/s" in figure:
        low, middle, high = statistics.quantiles(figure["GB/s"], n=4, method="inclusive")
        return f"{middle:.2f} ({low:.2f} to {high:.2f})"
    text = f"{figure['median']:.2f}"
    if "lower" in figure:
        text += f" ({figure['lower']:.2f} to {figure['upper']:.2f})"
    return text


def bar_text(figure: dict[str, Any]) -> str:
    if "bar" not in figure:
        return ""
    return f"{figure['bar']:g}, {'met' if figure['passed'] else '**missed**'}"


def figures_table(name: str, results: Path) -> str:
    path = results / f"{name}.json"
    if not path.exists():
        return "Not measured on a quiet machine yet.\n"
    figures = json.loads(path.read_text())
    run = figures.pop("run", None)
    rows = [[each, figure_text(figure), bar_text(figure)] for each, figure in figures.items()]
    spread = any("(" in text for _, text, _ in rows)
    where = f"On {name_of(run)}, {run['date']}:\n\n" if run else ""
    return where + table(["figure", "median (quartiles)" if spread else "median", "bar"], rows) + "\n"


MEASURED = {name: (lambda results, name=name: figures_table(name, results)) for name in COMMANDS}
