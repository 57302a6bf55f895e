"""Named places at which tests end a process, to see that a job survives its death there."""

from collections.abc import Callable

POINTS = ("gate", "committed", "step", "ending", "ended", "dropped", "met", "rejoined", "given",
          "joined", "started", "filled", "change described", "change left", "change met", "change built", "change opened",
          "change copied", "change loaded", "change committed")

on_reach: Callable[[str], None] | None = None  # set by tests


def reach(point: str) -> None:
    """Called at each place."""
    if on_reach is not None:
        on_reach(point)
