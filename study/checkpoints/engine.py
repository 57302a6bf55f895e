"""What the study knows of an engine: how to save with it, and how its users resume."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from states import State

Save = Callable[[int, State, Path], None]  # step, state, folder
Load = Callable[[Path], State | None]  # None: it found no checkpoint, and starts anew


@dataclass(frozen=True)
class Engine:
    """An engine as its manual says. With several ranks, each calls save and saves its part."""

    name: str
    package: str  # whose version is told
    save: Save
    load: Load
    ranks: int = 1
    why_not: str = ""  # why it cannot run here
