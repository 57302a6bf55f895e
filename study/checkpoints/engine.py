"""What the study knows of an engine: how to save with it, and how its users resume."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from states import State

Hold = Callable[[State], Any]  # the framework's own objects, with these values
Save = Callable[[int, Any, Path], None]  # step, what hold() has made, folder
Load = Callable[[Path], State | None]  # None: it found no checkpoint, and starts anew
LoadOne = Callable[[Path, str], Any]  # a tensor by its name, without the others


class Session(NamedTuple):
    """How a training saves."""

    save: Callable[[int], None]
    wait: Callable[[], None]  # before the tensors may change
    finish: Callable[[], None]  # until what was saved is written


@dataclass(frozen=True)
class Engine:
    """An engine as its manual says. With several ranks, each calls save and saves its part."""

    name: str
    package: str  # whose version is told
    hold: Hold
    save: Save
    load: Load
    ranks: int = 1
    why_not: str = ""  # why it cannot run here
    load_one: LoadOne | None = None
    save_part: Save | None = None  # the share of this rank of several, which MASTER_ADDR etc. describe
    without: Mapping[str, Save] = field(default_factory=dict)  # how it saves if a part of its work is left out
    # Saves while training goes on. None: training waits for each save.
    background: Callable[[Any, Path], AbstractContextManager[Session]] | None = None

    def session(self, held: Any, folder: Path) -> AbstractContextManager[Session]:
        return (self.background or self._at_once)(held, folder)

    @contextmanager
    def _at_once(self, held: Any, folder: Path) -> Any:
        yield Session(lambda step: self.save(step, held, folder), lambda: None, lambda: None)
