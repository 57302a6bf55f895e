"""Finds DataLoaders that a training reads and that the Checkpointer was not given.

Their position is not known, so that the process that replaces a lost rank reads other samples than
that rank would have. One that feeds the training hands out batches from the same iterator, step
after step. A validation begins a new iterator each time.
"""

import logging
import weakref
from typing import Any

from holdfast.torch.data.read_batch import BatchReader
from holdfast.torch.data.read_loaders import listeners, name_of
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
        listeners.add(self)

    def after_step(self) -> None:
        """Notes a call of ck.step(): what is read now belongs to the next step."""
        self._step += 1

    def close(self) -> None:
        """The training is over."""
        listeners.discard(self)

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

    def note_end(self, iterator: Any) -> None:
        """An iterator of a DataLoader is at its end."""

    def _tell(self, dataset: Any) -> None:
        name = name_of(dataset)
        if name in self._found:
            return
        self._found.append(name)
        if self._speaks:
            _log.warning("%s: the training reads it, and the Checkpointer was not given it: the "
                         "process that replaces a rank that dies reads other samples, and so does "
                         "a resumed training; expected data=%s", name, name)
