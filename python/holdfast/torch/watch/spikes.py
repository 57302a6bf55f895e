"""The spike guard: losses, and norms of gradients, that are far larger than those before them."""

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch

from holdfast.torch.values.boxes import local_of
from holdfast.torch.watch.alarms import SPIKED, Alarm

_KEPT = 100  # a figure is compared with so many before it
FIRST = 20  # so many figures are only noted
# A figure below this share of the first ones is usual. When a model has learned all that it can, the
# loss and the gradient are near 0 and jump by large factors, without a fault.
TINY = 1e-3
_WIDE = 4  # bytes


def norm_of(gradient: torch.Tensor) -> torch.Tensor:
    """The norm of what this rank holds of a gradient, not read from its device."""
    return _norm(_values_of(gradient))


def norm_of_all(gradients: Iterable[torch.Tensor]) -> torch.Tensor | None:
    """The norm of these gradients together; None if there are none.

    Gradients of 32 and 64 bits on one device have their norms taken together, in few kernels.
    Those of 16 bits do not: their norms may be larger than the largest number of 16 bits.
    """
    alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for gradient in gradients:
        values = _values_of(gradient)
        alike.setdefault((values.device, values.dtype), []).append(values)
    norms = [norm for (_, dtype), found in alike.items()
             for norm in (torch._foreach_norm(found) if dtype.itemsize >= _WIDE
                          else map(_norm, found))]
    if not norms:
        return None
    return torch.linalg.vector_norm(torch.cat([one.to(norms[0].device).reshape(1)
                                               for one in norms]))


def _values_of(gradient: torch.Tensor) -> torch.Tensor:
    local = local_of(gradient.detach())
    values = local._values() if local.is_sparse else local
    return torch.view_as_real(values) if values.is_complex() else values


def _norm(values: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float32))


def found_inf_of(optimizer: torch.optim.Optimizer) -> torch.Tensor | None:
    """A number on the device of the optimizer: above 0 if the next update is left out.

    GradScaler lets a fused optimizer find out itself that it must leave out an update.
    """
    found = getattr(optimizer, "found_inf", None)
    return found if isinstance(found, torch.Tensor) else None


class Figures:
    """The last values of one figure: the loss, or the norm of the gradient."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._kept: deque[float] = deque(maxlen=_KEPT)
        self._least = 0.0  # figures up to here are usual

    def look(self, value: float) -> str:
        """Notes the value. Returns what was expected if it is a spike; else "".

        Of a spike only the bound that it exceeds is noted. So a second spike that is much larger
        than the bound is still seen, and figures that stay large become usual after a while.
        """
        if not math.isfinite(value):
            return "a finite number"
        count = len(self._kept)
        bound = self._factor * max(self._kept, default=0.0)
        is_spike = count >= FIRST and abs(value) > max(bound, self._least) and bound > 0
        self._kept.append(bound if is_spike else abs(value))
        if count < FIRST:
            self._least = TINY * max(self._kept)
        if not is_spike:
            return ""
        return f"at most {bound:.3g}, {self._factor:g} times the largest of the last {count}"


class SpikeGuard:
    """Compares losses and norms of gradients with those before them.

    Figures on a GPU are read at the next comparison of the ranks, so that training need not wait.
    """

    def __init__(self, factor: float, rank: int) -> None:
        self._factor, self._rank = factor, rank
        self._figures: dict[Any, Figures] = {}
        self._coming: list[tuple[int, Any, str, Any]] = []  # (step, series, name, value)

    def restart(self) -> None:
        """Forgets all figures: training begins anew at another step."""
        self._figures, self._coming = {}, []

    def note_loss(self, step: int, loss: Any) -> None:
        """Notes the loss of a step; None, and what is no single number, is left out."""
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._coming.append((step, "loss", "loss", loss.detach().reshape(()).clone()))
        elif isinstance(loss, int | float):
            self._coming.append((step, "loss", "loss", float(loss)))

    def note_gradient(self, step: int, optimizer: torch.optim.Optimizer) -> None:
        """Notes the norm of the gradient that an optimizer is about to use."""
        norm = norm_of_all(p.grad for group in optimizer.param_groups for p in group["params"]
                           if p.grad is not None)
        if norm is None:
            return
        found = found_inf_of(optimizer)
        if found is not None:
            norm = torch.where(found.to(norm.device) > 0, torch.zeros_like(norm), norm)
        self._coming.append((step, id(optimizer), "norm of the gradient", norm))

    def take_alarms(self, *, wait: bool) -> list[Alarm]:
        """The alarms about what was noted; figures on a GPU are read only if `wait`."""
        known = [one for one in self._coming if wait or not _is_on_device(one[3])]
        self._coming = [] if wait else [one for one in self._coming if _is_on_device(one[3])]
        alarms = []
        for step, series, name, value in known:
            number = float(value)
            expected = self._figures.setdefault(series, Figures(self._factor)).look(number)
            if expected:
                alarms.append(Alarm(step, self._rank, name, None, "", expected, f"{number:.3g}",
                                    SPIKED, guard="spike"))
        return alarms


def _is_on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type != "cpu"
