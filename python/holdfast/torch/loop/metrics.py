"""Numbers that the program reports by step(metrics=) and save(metrics=), on their way to a save."""

from collections.abc import Mapping
from typing import Any

import torch

from holdfast import _native
from holdfast.torch.loop.losses import copy_from_gpu, is_on_gpu

_PATIENCE = 3  # the save at which Keep's metric must have been reported
KEY = "reported metrics"


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
