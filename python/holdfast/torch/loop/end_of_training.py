"""Tells whether close() may save the last step: only if the model is still what it was then.

After its last step, a training often loads its best weights, or swaps averages in. To save them as
the last step would be wrong, and silently so.
"""

import sys
from collections.abc import Mapping

import torch

from holdfast.torch.state.change_detection import TensorVersions

SECONDS = 5.0  # how long close() waits for the other ranks to come to it
_SAMPLE = 32  # so many tensors of the model are looked at, to cost a step only microseconds


class LastStep:
    """The last step, and the versions of some of the model's tensors right after it."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._sample: TensorVersions | None = None
        self._versions: list[int] = []

    def watch(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Looks at some of these tensors from now on: parameters and buffers of the model."""
        names = list(tensors)
        distance = -(-len(names) // _SAMPLE) or 1
        self._sample = TensorVersions({name: tensors[name] for name in names[::distance]})

    def note(self, step: int) -> None:
        """Notes that the model is now what it is after that step."""
        self._step = step
        if self._sample is not None:
            self._versions = self._sample.now()

    def is_unchanged(self, step: int) -> bool:
        """True if no write to the model was seen since that step, as far as torch counts them."""
        return (self._step == step and self._sample is not None
                and not self._sample.changed(self._versions))


def is_exception_on_its_way() -> bool:
    """True in an `except` or `finally` that an exception has led to."""
    return sys.exc_info()[1] is not None
