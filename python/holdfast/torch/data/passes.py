"""A pass is one iteration over a loader. The training learns from some passes, others validate.

torch's DataLoader does not care what its batches are for. The position that a checkpoint saves
does: it is that of the pass that trains. A pass trains if an update of an optimizer, or a call of
ck.step(), uses its batches. All other passes are as if they had not been, except for the random
numbers that they drew.
"""

import collections
import contextlib
import gc
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.torch.values import generators

# Objects through which a user may hand an iterator to itertools.cycle.
_BETWEEN = (enumerate, map, zip, filter, tuple)
_READERS = (*_BETWEEN, itertools.cycle, itertools.islice)
_DEEPEST = 5

Kept = collections.deque[tuple[Any, Any]]  # batches that were handed out, and the generators then


@dataclass(eq=False)
class Pass:
    """What is known of one pass. It outlives the iterator of the pass."""

    is_trained: bool  # an update or a step was made with its batches
    is_open: bool = True  # its iterator is in use: it is not exhausted, and somebody holds it
    is_kept: bool = False  # itertools.cycle keeps its batches, and goes on with them
    is_uncounted: bool = False  # it was an epoch that is not counted, because it trained nothing
    first: int = 0  # the batch of the epoch with which it began
    stepped: int = 0  # the batch of the epoch at the last step, or 0
    handed_out: int = 0  # batches
    unused: int = 0  # batches since the last update or step
    was_interrupted: bool = False  # another pass was made in the middle of this one
    interrupted: "Pass | None" = None  # goes on after this pass, unless this one trains
    position: Any = None  # that of the loader in this pass, while another pass interrupts it
    iterator: Any = field(default=lambda: None)  # a weak reference to the iterator


class _Owner(Protocol):
    generators: Mapping[str, Any]
    listeners: tuple[tuple[Callable[[], Any], Callable[[], Any]], ...]

    def check_turn(self, one: Pass) -> None: ...

    def note_batch(self, one: Pass, batch: Any) -> None: ...


class PassIterator:
    """The iterator of a pass. It notices when the pass has ended, and when it is left early."""

    def __init__(self, owner: _Owner, one: Pass, batches: Iterator[Any], again: Kept) -> None:
        self._owner, self._pass, self._again = owner, one, again
        self._batches: Iterator[Any] | None = batches
        one.iterator = weakref.ref(self)

    def __iter__(self) -> "PassIterator":
        return self

    def __next__(self) -> Any:
        if self._batches is None:
            raise StopIteration
        try:
            batch = self._next(self._batches)
        except BaseException:
            self._end()
            raise
        return batch

    def _next(self, batches: Iterator[Any]) -> Any:
        self._owner.check_turn(self._pass)
        for _, request in self._owner.listeners:
            request()
        if self._again:
            batch, state = self._again.popleft()
            generators.restore(state, self._owner.generators)  # as if the batch had been read again
        else:
            batch = next(batches)
        self._owner.note_batch(self._pass, batch)
        return batch

    def _end(self) -> None:
        self._batches, self._pass.is_open = None, False

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # __init__ has failed
            self._end()


def is_cycled(one: Pass) -> bool:
    """True if itertools.cycle reads the pass: it keeps the batches, and repeats them for ever."""
    return any(type(holder) is itertools.cycle for holder in holders_of(one))


def holders_of(one: Pass) -> Iterator[Any]:
    """What holds the iterator of a pass: the objects through which the loop reads it, from inside out.

    Nothing but the garbage collector knows who holds an iterator. It takes some milliseconds.
    """
    holders = [one.iterator()]
    for _ in range(_DEEPEST):
        found = gc.get_referrers(*holders)
        yield from (other for other in found if type(other) in _READERS)
        holders = [other for other in found if type(other) in _BETWEEN]
        if not holders:
            return


def without_draws(batches: Iterator[Any], beside: Mapping[str, Any]) -> Iterator[Any]:
    """Batches that are read a second time. ValueError if reading them draws random numbers.

    `beside` are generators beside those of the process.
    """
    while True:
        before = generators.capture(beside)
        try:
            batch = next(batches)
        except StopIteration:
            return
        if generators.capture(beside) != before:
            raise ValueError("data: itertools.cycle has kept batches that the dataset made with "
                             "random numbers, and they cannot be made again; expected "
                             "num_workers=1 or more, or a new `for` over the loader in each epoch")
        yield batch
