"""Numbers that the program reports: losses, read without waiting for a GPU, and metrics on their way to a save."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from holdfast import _native

_PATIENCE = 3  # the save at which Keep's metric must have been reported
KEY = "reported metrics"
_EVERY = 16  # steps between two losses that are read from a GPU


def value_without_waiting(loss: Any) -> float | None:
    """The loss as a number, if it is known without waiting for a GPU; else None."""
    if not isinstance(loss, torch.Tensor):
        return None if loss is None else _number_of_loss(loss)
    if loss.device.type == "cuda" or loss.numel() != 1:
        return None
    return float(loss.detach())


def _number_of_loss(loss: Any) -> float:
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
        self.decide = decide
        self._started = time.monotonic()
        self._newest: float | None = None
        self._last: tuple[int, float] | None = None  # the newest that was known at once, and its step
        self._coming: tuple[int, torch.Tensor, torch.cuda.Event] | None = None
        self._next = 0

    def ask(self, job: _native.Job, step: int) -> None:
        """Asks `decide`, which is there, whether to save after that step."""
        assert self.decide is not None
        if self.decide(step, time.monotonic() - self._started):
            job.want("asked for by every=")

    def record(self, step: int, loss: Any) -> tuple[int, float] | None:
        """Records a loss. Returns a step and its loss, if one has become known."""
        now = loss if type(loss) is float else value_without_waiting(loss)
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


def metric_of(keep: Any) -> str:
    """The metric by which `keep=` keeps the best steps; "" if there is none, or it is the loss."""
    by_metric = isinstance(keep, _native.Keep) and keep.best > 0 and keep.metric != "loss"
    return keep.metric if by_metric else ""


class Metrics:
    """The metrics that were reported and that no save has yet.

    Each reported number goes with one save: the first one at its step or later. So a number never
    stands beside two steps, of which at most one was measured.
    """

    def __init__(self, keep: Any) -> None:
        """`keep` is that of the Checkpointer; if it keeps the best steps, it names a metric."""
        self._wanted = metric_of(keep)
        self._known: dict[str, float] = {}
        self._coming: dict[str, tuple[torch.Tensor, Any]] = {}  # on their way from a GPU
        self._reported: set[str] = set()
        self._newest: dict[str, float] = {}  # those of the newest save
        self._saves = 0

    def tell(self, metrics: Mapping[str, Any] | None, *, wait: bool = False) -> None:
        """Takes what the program reports. Waits for numbers on a GPU only if told to.

        None in the place of a number says that it will be known later.
        """
        if metrics is None:
            return
        if not isinstance(metrics, Mapping):
            raise TypeError(f"metrics={metrics!r}; expected a dict of numbers by their names")
        for name, value in metrics.items():
            if not isinstance(name, str) or not name:
                raise TypeError(f"metrics: a name is {name!r}; expected text")
            self._reported.add(name)
            if is_on_gpu(value) and not wait:
                self._coming[name] = copy_from_gpu(value)
            elif value is not None:
                self._known[name] = _number(name, value)
                self._coming.pop(name, None)

    @property
    def has_news(self) -> bool:
        """True if a number was reported that no save has."""
        return bool(self._known or self._coming)

    def take(self, job: _native.Job, loss: float | None, *, again: bool) -> dict[str, float]:
        """The metrics of a save that begins now. `again` if the save before it was lost.

        ValueError, on all ranks, at the third save if no rank has reported the metric that decides
        which steps are kept.
        """
        self._saves += 1
        if self._wanted and self._saves == _PATIENCE:
            self._check_reported(job)
        for name in [name for name, (_, event) in self._coming.items() if event.query()]:
            self._known[name] = float(self._coming.pop(name)[0])
        told = {**(self._newest if again else {}), **self._known}
        self._newest, self._known = told, {}
        return {**({} if loss is None else {"loss": loss}), **told}

    def _check_reported(self, job: _native.Job) -> None:
        if not job.any(self._wanted in self._reported):
            raise ValueError(
                f'keep: the best steps by "{self._wanted}", which nobody has reported by the third '
                f'save; expected step(..., metrics={{"{self._wanted}": number}}), or save(), with '
                "None as long as there is no number")

    def state(self) -> list[str]:
        """The names that were reported, for a checkpoint."""
        return sorted(self._reported)

    def resumed(self, objects: Mapping[str, Any]) -> None:
        """Notes which names were reported before the checkpoint."""
        self._reported |= set(objects.get(KEY, ()))

    def rejoin(self) -> None:
        """Counts saves anew, as the replacement of a lost rank does."""
        self._saves = 0


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value.detach())
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        kind = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else (
            f"a {type(value).__qualname__}")
        raise TypeError(f'metrics: "{name}" is {kind}; expected a number, or a tensor with one '
                        "element") from None
