"""Random numbers that a loop draws behind ck.step(), which a training that is resumed does not draw.

A validation draws when it makes the iterator of a DataLoader, for example. A save has the generators as they
are at ck.step(), and a resumed loop begins at the top of the next step: numbers that were drawn in between
are drawn again if they belong to the top of the loop, and else are missing. Nobody can tell the two apart
while they are drawn. So after each save it is noted how far the generators have moved when the loop asks for
its next batch, and later saves have these notes. When a resumed loop asks for its first batch, its own
generators must have moved as far as in each of these notes; if not, the run may differ in bits.
"""

import logging
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.torch.data.loaders import Loaders
from holdfast.torch.values import generators as random_generators

_log = logging.getLogger("holdfast")

_MOST = 4  # different notes that are kept
_LINE = ("generators: random numbers are drawn behind ck.step() in steps that were saved, and a resumed run does "
         "not draw them; expected such draws, and validations, before ck.step(), or in torch.random.fork_rng()")

Moved = dict[str, int]  # as random_generators.distances() tells it


class LateDraws:
    """What is known of them in one process."""

    def __init__(self, generators: Mapping[str, Any], data: Loaders) -> None:
        """`generators` are those beside the process's own, in a dict that may grow."""
        self._generators, self._data = generators, data
        self._notes: list[Moved] = []
        self._before: Any = None  # the generators at the newest save or resume; None behind the next request
        self._expected: Sequence[Moved] = ()  # notes of the checkpoint that was resumed
        self._inexact: list[str] = []  # gets a line if they are not met
        me = weakref.ref(self)  # a loader may live longer
        end = data.listen(lambda: (one := me()) and one._begin_pass(), lambda: (one := me()) and one._ask())
        weakref.finalize(self, end).atexit = False

    def saved(self, generators: Any) -> list[Moved]:
        """A save has these generators. Returns the notes that belong into it."""
        self._before, self._expected = generators, ()
        return list(self._notes)

    def resumed(self, generators: Any, notes: Sequence[Moved], inexact: list[str]) -> None:
        """The generators are restored, or will be when a pass begins. `inexact` gets a line if numbers are missing."""
        self._notes, self._before = list(notes), generators
        self._expected, self._inexact = notes, inexact

    def _begin_pass(self) -> None:
        """What was drawn behind an epoch is drawn again: a resumed loop begins in that epoch."""
        if not self._expected:
            self._before = None

    def _ask(self) -> None:
        if self._before is None or self._data.awaits_iterator:  # generators are not restored yet
            return
        moved = random_generators.distances(self._before, random_generators.capture(self._generators))
        expected, self._before, self._expected = self._expected, None, ()
        if not expected:
            self._notes = self._notes if moved in self._notes else [*self._notes[1 - _MOST:], moved]
        elif expected.count(moved) < len(expected) and not any(line.startswith("generator") for line in self._inexact):
            self._inexact.append(_LINE)  # unless a generator could not be restored, which is told already
            _log.warning("resume: %s", _LINE)
