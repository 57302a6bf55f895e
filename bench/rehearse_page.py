"""Makes the measured section of docs/rehearse.md from the figures of bench/rehearse_bench.py."""

import json
from pathlib import Path
from typing import Any

from measuring.machines import is_busy, name_of
from measuring.pages import Section

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "bench/results/rehearse.json"
MEASURED = Section.made_by(ROOT / "docs/rehearse.md", "bench/rehearse_bench.py --doc")
BAR = 1.3


def committed() -> dict[str, Any]:
    """The figures that are kept; empty if nobody has measured yet."""
    return json.loads(FIGURES.read_text()) if FIGURES.exists() else {}


def section(seen: dict[str, Any]) -> str:
    """The text between the marks."""
    return "\n" + _text(seen) + "\n\n"


def _text(seen: dict[str, Any]) -> str:
    if not seen:
        return (f"`bench/rehearse_bench.py` measures how much longer a step takes while it is recorded; its bar "
                f"is {BAR} times. No figure of it is kept yet.")
    if is_busy(seen):
        return ("The machine was busy with other work while `bench/rehearse_bench.py` measured, so how much longer "
                "a recorded step takes is not told here.")
    one = seen["ratio"]
    return (f"A step that is recorded takes {one['median']:.2f} times as long as one without ({one['low']:.2f} to "
            f"{one['high']:.2f}; bar: {BAR}), in `examples/train_gpt.py` with steps of {seen['step_ms']:.0f} ms on "
            f"{name_of(seen)}: [rehearse.json](../bench/results/rehearse.json), by `bench/rehearse_bench.py`.")
