"""Makes the measured section of docs/failures.md from the figures of bench/watch_bench.py."""

from pathlib import Path
from typing import Any

from measuring.machines import is_busy
from measuring.pages import Section, table

MEASURED = Section.made_by(Path(__file__).resolve().parents[1] / "docs/failures.md",
                           "bench/watch_bench.py --doc")


def write_page(seen: dict[str, Any]) -> None:
    """Replaces what stands between the marks of the page."""
    MEASURED.write(section(seen))


def section(seen: dict[str, Any]) -> str:
    """The text between the marks."""
    curve = seen["detection"]
    agree = sum(one["agrees"] for one in curve)
    rows = [[f"{one['share']:.1%}", f"{one['window_bytes'] / one['bytes']:.1%}",
             f"{one['seen']:,} of {one['flips']:,}",
             f"{one['part']:.1%} ({one['low']:.1%} to {one['high']:.1%})",
             f"{one['reported_chance']:.1%}"] for one in curve]  # fmt: skip
    return (
        f"\n{cost_text(seen)} For the table, bits at random places of "
        f"{curve[0]['bytes'] / 1e6:.0f} MB flipped at random times of steps of 5 ms. "
        f"The last column is what `ck.watched` said by itself; for {agree} of {len(curve)} shares it "
        f"lies inside the 99.9 % interval of what was seen (`bench/watch_bench.py`).\n\n"
        + table(["`share=`", "looked at in a step", "flips seen before the next update",
                 "with 95 % interval", "chance that the watch tells"], rows)
        + "\n\n"
    )  # fmt: skip


def cost_text(seen: dict[str, Any]) -> str:
    """What the watch costs; on a busy machine, that this could not be measured."""
    if is_busy(seen):
        return (f"The machine was busy with other work while this was measured ("
                f"{seen['load']:.1f} of {seen['cores']} cores were at work), so what the watch costs a step is "
                f"not told here.")  # fmt: skip
    cost = seen["cost"]
    return (f"With {cost['bytes'] / 1e6:.0f} MB of parameters and slots and steps of "
            f"{cost['step_s'] * 1e3:.0f} ms, the watch adds {cost['added_s'] * 1e6:.0f} µs to a step, "
            f"{cost['added_share']:.2%} of it, and looks at everything once in "
            f"{cost['cycle_steps']:,} steps.")  # fmt: skip
