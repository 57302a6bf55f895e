"""The dispersion guard: is the gradient of one rank unlike those of the others?

Ranks that average their gradients all get the same wrong sum if one of them is damaged, so that
their parameters stay equal. So the norm of each gradient is taken before that, by a hook of the
parameter, and ranks compare their norms when they meet. Ranks are compared if they hold the same
parameters.
"""

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from holdfast.torch.watch.alarms import DISPERSED, Alarm
from holdfast.torch.watch.replica_groups import Held, digest_of
from holdfast.torch.watch.spikes import norm_of


class DispersionGuard:
    """The norms of this rank's gradients since the last meeting."""

    def __init__(self, factor: float, rank: int) -> None:
        self._factor, self._rank = factor, rank
        self._hooks: list[Any] = []
        self._parameters = ""  # a digest of which parameters this rank holds
        self._norms: list[tuple[str, torch.Tensor]] = []  # since the last step
        self._steps: dict[int, list[tuple[str, torch.Tensor]]] = {}

    def hook(self, held: Held) -> None:
        """Takes the norms of the gradients of these parameters from now on."""
        self.close()
        mine = [(piece, name, key) for piece, name, key
                in zip(held.pieces, held.names, held.keys, strict=True)
                if piece.kind == "parameter" and piece.outer is not None]
        self._parameters = digest_of(*(key for _, _, key in mine))
        self._hooks = [piece.outer.register_hook(functools.partial(self._take, name))
                       for piece, name, _ in mine if piece.outer.requires_grad]

    def close(self) -> None:
        """Removes the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._norms, self._steps = [], [], {}

    def _take(self, name: str, gradient: torch.Tensor) -> None:
        self._norms.append((name, norm_of(gradient)))

    def step(self, step: int) -> None:
        """Notes that the gradients since the last call belong to that step."""
        if self._norms:
            self._steps[step], self._norms = self._norms, []

    def message(self) -> dict[str, Any]:
        """What the other ranks need to know: the norm of all gradients of each step."""
        totals = {str(step): math.hypot(*(float(norm) for _, norm in norms))
                  for step, norms in self._steps.items()}
        return {"of": self._parameters, "norms": totals}

    def hear(self, ranks: Sequence[Mapping[str, Any]],
             gather: Callable[[Any], list[Any]]) -> list[Alarm]:
        """The alarms about all ranks, given their messages; the same on all ranks."""
        found = [alarm for rank in range(len(ranks)) for alarm in self._judge(ranks, rank)]
        steps, self._steps = self._steps, {}
        if not found:
            return []
        named = gather({str(one.step): _largest(steps[one.step]) for one in found
                        if one.rank == self._rank})
        return [replace(one, tensor=named[one.rank][str(one.step)]) for one in found]

    def _judge(self, ranks: Sequence[Mapping[str, Any]], rank: int) -> list[Alarm]:
        told, alarms = ranks[rank], []
        others = [one["norms"] for k, one in enumerate(ranks)
                  if k != rank and one["of"] == told["of"]]
        for step, norm in told["norms"].items():
            expected = self._expected(norm, [one[step] for one in others if step in one])
            if expected:
                alarms.append(Alarm(int(step), rank, "", None, "", expected, f"{norm:.3g}",
                                    DISPERSED, guard="dispersion"))
        return alarms

    def _expected(self, norm: float, others: Sequence[float]) -> str:
        """What was expected of a norm that is unlike those of the others; else ""."""
        finite = [one for one in others if math.isfinite(one)]
        if not finite:
            return ""
        bound = self._factor * statistics.median(finite)
        if bound <= 0 or norm <= bound:
            return ""
        return f"at most {bound:.3g}, {self._factor:g} times the median of the other ranks"


def _largest(norms: Sequence[tuple[str, torch.Tensor]]) -> str:
    """The name of the tensor whose gradient has the largest norm. NaN counts as infinite."""
    def size(one: tuple[str, torch.Tensor]) -> float:
        value = float(one[1])
        return math.inf if math.isnan(value) else value

    return max(norms, key=size)[0]
