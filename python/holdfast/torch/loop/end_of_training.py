"""Tells whether close() may save the last step: only if the model is still what it was then.

After its last step, a training often loads its best weights, or swaps averages in. To save them as
the last step would be wrong, and silently so.
"""

import sys
from collections.abc import Callable, Mapping

import torch

from holdfast import _native
from holdfast.torch.loop.kept_elements import KeptElements
from holdfast.torch.loop.step_numbers import DAMAGED
from holdfast.torch.state.change_detection import TensorVersions
from holdfast.torch.values.dotted_names import name_a_few

RANK_WAIT = 5.0  # close() waits so long for the other ranks to call it, too
CHANGED = "the model has changed since then"
_SAMPLE = 8  # the versions of so many tensors are looked at, to cost a step only microseconds


class LastStep:
    """The last step, and what some of the model's tensors were right after it."""

    def __init__(self, find_tensors: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        """`find_tensors` returns the parameters and buffers of the model. It is called once."""
        self._find_tensors = find_tensors
        self._step: int | None = None
        self._sample: TensorVersions | None = None
        self._versions: list[int] = []
        self._elements: KeptElements | None = None

    def note(self, step: int) -> None:
        """Notes that the model is now what it is after that step."""
        if self._sample is None or self._elements is None:
            tensors = self._find_tensors()
            self._sample, self._elements = _sample_of(tensors), KeptElements(tensors)
        self._step, self._versions = step, self._sample.now()
        self._elements.keep()

    def note_update(self) -> None:
        """Notes that an optimizer has changed the model."""
        self._step = None

    def forget(self) -> None:
        """Lets go of all tensors, which may have been replaced."""
        self._step = self._sample = self._elements = None

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


def is_exception_on_its_way() -> bool:
    """True in an `except` or `finally` that an exception has led to."""
    return sys.exc_info()[1] is not None


def agree_on_end(why: str | None, job: _native.Job, check_not_broken: Callable[[], None]
                 ) -> str | None:
    """Why no rank saves the last step, None if all do; `why` is what this rank knows against it."""
    # A rank that an exception has led here does not ask the others: they may be anywhere.
    if is_exception_on_its_way() or job.all_agree(why is None, RANK_WAIT):
        return why
    check_not_broken()
    return why or "not all ranks came to close() in time, or one of them does not save it"


def why_no_end(wanted: bool, never_saves: bool, changed: str, is_damaged: bool) -> str | None:
    """Why close() does not save the last step; None if it does, as far as this rank knows."""
    reasons = {
        DAMAGED: is_damaged,
        "close(save=False) was asked for": not wanted,
        'every="never" leaves saving to save()': never_saves,
        "an exception has ended the training": is_exception_on_its_way(),
        changed: bool(changed),
    }
    return next((why for why, holds in reasons.items() if holds), None)
