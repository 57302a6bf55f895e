"""Finds DataLoaders that a training reads and that the Checkpointer was not given.

Their position is not known, so that the process that replaces a lost rank reads other samples than
that rank would have. One that feeds the training hands out batches from the same iterator, step
after step. A validation begins a new iterator each time.
"""

import functools
import logging
import sys
import weakref
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from holdfast.torch.data.read_batch import BatchReader
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values.stored_attributes import stored

_log = logging.getLogger("holdfast")

_STEPS = 2  # an iterator that is read before so many steps feeds the training


class UnknownLoaders:
    """The loaders that were found by one Checkpointer."""

    def __init__(self, state: TrainingState, found: list[str], *, speaks: bool) -> None:
        """`found` gets their names; a replacement has those that the other ranks have found."""
        self._found, self._speaks = found, speaks
        # A loader of another library, which was given, may read through a DataLoader.
        self._is_off = state.data.stateful is not None and not state.data.are_own
        self._step = 0
        self._read: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
        _listeners.add(self)

    def after_step(self) -> None:
        """Notes a call of ck.step(): what is read now belongs to the next step."""
        self._step += 1

    def close(self) -> None:
        """The training is over."""
        _listeners.discard(self)

    def note(self, iterator: Any) -> None:
        """An iterator of a DataLoader has handed out a batch."""
        if self._is_off or not self._step:
            return
        times, last = self._read.get(iterator, (0, 0))
        if last == self._step:
            return
        self._read[iterator] = times + 1, self._step
        dataset = dict(stored(iterator)).get("_dataset")
        if times + 1 == _STEPS and not isinstance(dataset, BatchReader):  # that is Holdfast's own
            self._tell(dataset)

    def _tell(self, dataset: Any) -> None:
        name = _name_of(dataset)
        if name in self._found:
            return
        self._found.append(name)
        if self._speaks:
            _log.warning("%s: the training reads it, and the Checkpointer was not given it: the "
                         "process that replaces a rank that dies reads other samples, and so does "
                         "a resumed training; expected data=%s", name, name)


_listeners: weakref.WeakSet[UnknownLoaders] = weakref.WeakSet()


@functools.cache
def watch_loaders() -> None:
    """From now on, iterators of DataLoaders tell of the batches that they hand out."""
    read_next = _BaseDataLoaderIter.__next__

    @functools.wraps(read_next)
    def told(self: Any) -> Any:
        batch = read_next(self)
        for listener in tuple(_listeners):
            listener.note(self)
        return batch

    _BaseDataLoaderIter.__next__ = told


def _name_of(dataset: Any) -> str:
    """The name that the program has for a loader of this dataset, as far as that can be found."""
    program = vars(sys.modules.get("__main__", sys))
    for name, one in list(program.items()):
        if issubclass(type(one), DataLoader) and dict(stored(one)).get("dataset") is dataset:
            return name
    return f"a DataLoader of a {type(dataset).__qualname__}"
