"""Tells whether the model is still what it was after a step.

After its last step, a training often loads its best weights, or swaps averages in. To save them as
the last step would be wrong, and silently so. An element of every tensor is kept after the step that is
known to be the last one, and after each step that took so long that this costs a 2000th part of it at
most (a 200th part where that is a few microseconds). After a quicker step it is kept of a few tensors, of
others each time.
"""

import time
from collections.abc import Callable, Mapping

import torch

from holdfast.torch.loop.kept_elements import KeptElements
from holdfast.torch.state.change_detection import TensorVersions
from holdfast.torch.values.dotted_names import name_a_few

CHANGED = "the model has changed since then"
_PART = 2000  # an element of each tensor is kept if a step takes so many times as long,
_SHORT_PART = 200  # or so many times where keeping all takes
_SHORT = 50e-6  # so many seconds at most: a step of 100 ms is then slower by less than 0.1 %
_SAMPLE = 8  # the versions of so many tensors are looked at, to cost a step only microseconds


class LastStep:
    """The last step, and what some of the model's tensors were right after it."""

    def __init__(self, find_tensors: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        """`find_tensors` returns the parameters and buffers of the model. It is called once."""
        self._find_tensors = find_tensors
        self._step: int | None = None
        self._sample: TensorVersions | None = None
        self._versions: list[int] = []
        self._elements: KeptElements | None = None  # those that were kept last: one of the next two
        self._some: KeptElements | None = None
        self._all: KeptElements | None = None
        self._seconds, self._noted = 0.0, 0.0  # what keeping all takes, and when the step before was noted

    def note(self, step: int, is_last: bool = False) -> None:
        """Notes that the model is now what it is after that step."""
        if self._sample is None or self._some is None or self._all is None:
            self._begin()
        assert self._sample is not None
        self._step, self._versions = step, self._sample.now()
        now = time.perf_counter()
        part = _SHORT_PART if self._seconds <= _SHORT else _PART
        keeps_all = is_last or now - self._noted > part * self._seconds
        self._noted, self._elements = now, self._all if keeps_all else self._some
        assert self._elements is not None
        self._elements.keep()

    def _begin(self) -> None:
        tensors = self._find_tensors()
        self._sample, self._some = _sample_of(tensors), KeptElements(tensors)
        self._all = KeptElements(tensors, at_once=len(tensors) or 1)
        self._all.keep()
        self._all.keep()  # from now on it takes what it takes in each step
        began = time.perf_counter()
        self._all.keep()
        self._seconds = time.perf_counter() - began

    def note_update(self) -> None:
        """Notes that an optimizer has changed the model."""
        self._step = None

    def forget(self) -> None:
        """Lets go of all tensors, which may have been replaced."""
        self._step = self._sample = self._elements = self._some = self._all = None

    def changed_since(self, step: int) -> str:
        """What of the model may have been written to since that step; "" if nothing was."""
        if self._step != step or self._sample is None or self._elements is None:
            return CHANGED
        changed = dict.fromkeys(self._sample.changed(self._versions) + self._elements.changed())
        return f"{CHANGED} ({name_a_few(list(changed))})" if changed else ""


def _sample_of(tensors: Mapping[str, torch.Tensor]) -> TensorVersions:
    """At most _SAMPLE of the tensors, at equal distances in their order."""
    # torch does not count writes to tensors that were made in inference mode.
    names = [name for name, tensor in tensors.items() if not tensor.is_inference()]
    distance = -(-len(names) // _SAMPLE) or 1
    return TensorVersions({name: tensors[name] for name in names[::distance]})
