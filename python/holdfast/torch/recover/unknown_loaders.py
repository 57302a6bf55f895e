"""Finds DataLoaders that a training reads and that the Checkpointer was not given.

Their position is not known, so that the process that replaces a lost rank may read other samples than
that rank would have. A loader is named if an iterator of it has handed out a batch and is not at its
end behind the run that has read it, at the next top of the loop, or at the next ck.step(). A
validation reads its iterators to their ends. An iterator that was dropped before its end is named,
too, unless it read its dataset in order: then each new iterator hands out the same batches.
"""

import logging
import weakref
from typing import Any

from torch.utils.data import BatchSampler, SequentialSampler

from holdfast.torch.data.read_batch import BatchReader
from holdfast.torch.data.read_loaders import listeners, name_of
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values.stored_attributes import stored

_log = logging.getLogger("holdfast")

# The iterators that were read and are not at their ends: the dataset of each, and whether each new
# iterator of its loader hands out the same batches.
_Open = dict["weakref.ref[Any]", tuple[Any, bool]]


class UnknownLoaders:
    """The loaders that were found by one Checkpointer."""

    def __init__(self, state: TrainingState, found: list[str], *, speaks: bool) -> None:
        """`found` gets their names; a replacement has those that the other ranks have found."""
        self._found, self._speaks = found, speaks
        # A loader of another library, which was given, may read through a DataLoader.
        self._is_off = state.data.stateful is not None and not state.data.are_own
        self._is_started = False  # a replacement itself makes all reads before the first top of the loop
        self._is_in_run = False
        self._in_run: _Open = {}
        self._outside: _Open = {}
        listeners.add(self)

    def settle(self) -> None:
        """The top of the loop, or ck.step(): names what was read in front of it and is open still."""
        self._is_started = True
        self._name(self._outside)

    def begin_run(self) -> None:
        """What is read now is read by a run: again if it is made again, never if it is skipped."""
        self._is_started = self._is_in_run = True

    def end_run(self, *, is_done: bool) -> None:
        """Names what the run has read and is open still; if it is made again, what is older than it."""
        self._is_in_run = False
        self._name(self._in_run, also_dropped=is_done)

    def close(self) -> None:
        """The training is over."""
        listeners.discard(self)

    def note(self, iterator: Any) -> None:
        """An iterator of a DataLoader has handed out a batch."""
        if self._is_off or not self._is_started:
            return
        own = dict(stored(iterator))
        if not isinstance(own.get("_dataset"), BatchReader):  # that is Holdfast's own
            opened = self._in_run if self._is_in_run else self._outside
            opened[weakref.ref(iterator)] = own.get("_dataset"), _is_in_order(own)

    def note_end(self, iterator: Any) -> None:
        """An iterator of a DataLoader is at its end."""
        for opened in (self._in_run, self._outside):
            opened.pop(weakref.ref(iterator), None)

    def _name(self, opened: _Open, *, also_dropped: bool = True) -> None:
        for iterator, (dataset, is_in_order) in opened.items():
            if iterator() is not None or (also_dropped and not is_in_order):
                self._tell(dataset)
        opened.clear()

    def _tell(self, dataset: Any) -> None:
        name = name_of(dataset)
        if name in self._found:
            return
        self._found.append(name)
        if self._speaks:
            _log.warning("%s: the training reads it, and the Checkpointer was not given it: the "
                         "process that replaces a rank that dies may read other samples, and so may "
                         "a resumed training; expected data=%s", name, name)


def _is_in_order(iterator: dict[str, Any]) -> bool:
    """Whether an iterator with these attributes reads a dataset from its first sample on, in order."""
    sampler = iterator.get("_index_sampler")
    inside = dict(stored(sampler)).get("sampler") if type(sampler) is BatchSampler else sampler
    return type(inside) is SequentialSampler
