"""The loss, taken from the training loop without making a GPU wait."""

from typing import Any

import torch

_EVERY = 16  # steps between two looks at a loss on a GPU


def known_now(loss: Any) -> float | None:
    """The loss, if it can be had without waiting for a GPU."""
    if not isinstance(loss, torch.Tensor):
        return None if loss is None else float(loss)
    if loss.device.type == "cuda" or loss.numel() != 1:
        return None
    return float(loss.detach())


def waited_for(loss: Any) -> Any:
    """The loss, known: waits for the GPU if it is there."""
    return loss.item() if _is_on_gpu(loss) else loss


def _is_on_gpu(loss: Any) -> bool:
    return isinstance(loss, torch.Tensor) and loss.device.type == "cuda" and loss.numel() == 1


class Losses:
    """What is known of the losses: of the CPU's at once, of a GPU's some steps later."""

    def __init__(self) -> None:
        self._newest: float | None = None
        self._coming: tuple[int, torch.Tensor, torch.cuda.Event] | None = None
        self._next = 0

    def take(self, step: int, loss: Any) -> tuple[int, float] | None:
        """A step and its loss, if one is known now."""
        now = known_now(loss)
        known = (step, now) if now is not None else None
        if known is None and _is_on_gpu(loss):
            known = self._from_gpu(step, loss)
        if known is not None:
            self._newest = known[1]
        return known

    def newest(self, loss: Any) -> float | None:
        """That loss; if it is on a GPU and not known yet, the newest that is."""
        now = known_now(loss)
        if now is not None or not _is_on_gpu(loss):
            return now
        self._next = 0  # where saves are frequent, so are looks
        return self._newest

    def _from_gpu(self, step: int, loss: torch.Tensor) -> tuple[int, float] | None:
        """Copied in the stream's order, and read when the stream has come there."""
        known = None
        if self._coming is not None and self._coming[2].query():
            known = self._coming[0], float(self._coming[1])
            self._coming = None
        if self._coming is None and step >= self._next:
            self._next = step + _EVERY
            copy = torch.empty((), dtype=torch.float32, pin_memory=True)
            copy.copy_(loss.detach().reshape(()), non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self._coming = (step, copy, event)
        return known
