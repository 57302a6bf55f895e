"""The losses of the training loop, read without waiting for a GPU, and who is told of them."""

import time
from collections.abc import Callable
from typing import Any

import torch

from holdfast import _native

_EVERY = 16  # steps between two losses that are read from a GPU


def value_without_waiting(loss: Any) -> float | None:
    """The loss as a number, if it is known without waiting for a GPU; else None."""
    if not isinstance(loss, torch.Tensor):
        return None if loss is None else _number(loss)
    if loss.device.type == "cuda" or loss.numel() != 1:
        return None
    return float(loss.detach())


def _number(loss: Any) -> float:
    try:
        return float(loss)
    except (TypeError, ValueError):
        raise TypeError(f"loss={loss!r}; expected a number, or a tensor with one element") from None


def wait_for_value(loss: Any) -> Any:
    """The loss as a number. Waits for the GPU if the loss is there."""
    return loss.item() if is_on_gpu(loss) else loss


def is_on_gpu(value: Any) -> bool:
    """True for one number that cannot be read without waiting for a GPU."""
    return isinstance(value, torch.Tensor) and value.device.type == "cuda" and value.numel() == 1


def copy_from_gpu(value: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event]:
    """A copy in main memory of one number on a GPU, and the event after which it is there."""
    copy = torch.empty((), dtype=torch.float32, pin_memory=True)
    copy.copy_(value.detach().reshape(()), non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return copy, event


class Losses:
    """The losses so far. One on the CPU is known at once, one on a GPU some steps later."""

    def __init__(self, decide: Callable[[int, float], bool] | None = None) -> None:
        """`decide` is a function of (step, seconds since now) that says whether to save."""
        self._decide = decide
        self._started = time.monotonic()
        self._newest: float | None = None
        self._last: tuple[int, float] | None = None  # the newest that was known at once, and its step
        self._coming: tuple[int, torch.Tensor, torch.cuda.Event] | None = None
        self._next = 0

    def tell(self, job: _native.Job, step: int, loss: Any) -> None:
        """Tells the job what decides about saves: the loss of a step, and what `decide` says."""
        if loss is not None and (known := self.record(step, loss)) is not None:
            job.loss(*known)
        if self._decide is not None and self._decide(step, time.monotonic() - self._started):
            job.want("asked for by every=")

    def record(self, step: int, loss: Any) -> tuple[int, float] | None:
        """Records a loss. Returns a step and its loss, if one has become known."""
        now = value_without_waiting(loss)
        known = (step, now) if now is not None else None
        self._last = known
        if known is None and is_on_gpu(loss):
            known = self._from_gpu(step, loss)
        if known is not None:
            self._newest = known[1]
        return known

    def newest(self, loss: Any) -> float | None:
        """The given loss as a number; if it is on a GPU, the newest loss that is known."""
        now = value_without_waiting(loss)
        if now is not None or not is_on_gpu(loss):
            return now
        self._next = 0  # reads the next loss soon: saves that are frequent need recent losses
        return self._newest

    def of_step(self, step: int) -> float | None:
        """The loss that was told of this very step, if it was known at once."""
        return self._last[1] if self._last is not None and self._last[0] == step else None

    def _from_gpu(self, step: int, loss: torch.Tensor) -> tuple[int, float] | None:
        """Copies a loss to main memory without waiting; returns the last one that has arrived."""
        known = None
        if self._coming is not None and self._coming[2].query():
            known = self._coming[0], float(self._coming[1])
            self._coming = None
        if self._coming is None and step >= self._next:
            self._next = step + _EVERY
            self._coming = (step, *copy_from_gpu(loss))
        return known
