"""The dispersion guard: is the gradient of one rank unlike those of the others?

Ranks that average their gradients all get the same wrong sum if one of them is damaged, so that
their parameters stay equal. So the norm of each gradient is taken before that, by a hook of the
parameter, and ranks compare their norms (comparison.py). Ranks are compared if they hold the same
parameters.
"""

import functools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from holdfast.torch.watch.alarms import DISPERSED, Alarm
from holdfast.torch.watch.replica_groups import Held, digest_of
from holdfast.torch.watch.spikes import FIRST, TINY, found_inf_of, norm_of


@dataclass
class _Step:
    """The norms of the gradients of one step, by the names of their tensors."""

    names: list[str]
    figures: torch.Tensor  # the norms, and behind them what says that an update was left out
    is_updated: bool
    norms: list[float] = field(default_factory=list)  # as read from the device

    def read(self, figures: list[float]) -> None:
        count = len(self.names)
        self.norms = figures[:count]
        self.is_updated = self.is_updated and not any(found > 0 for found in figures[count:])

    @property
    def total(self) -> float:
        return math.hypot(*self.norms)

    @property
    def is_compared(self) -> bool:
        """False if the step has overflowed, and its update was left out for that reason."""
        return self.is_updated or math.isfinite(self.total)

    @property
    def largest(self) -> str:
        """The name of the tensor whose gradient has the largest norm. NaN counts as infinite."""
        sizes = [math.inf if math.isnan(norm) else norm for norm in self.norms]
        return self.names[sizes.index(max(sizes))]


class DispersionGuard:
    """The norms of this rank's gradients since the last comparison."""

    def __init__(self, factor: float, rank: int) -> None:
        self._factor, self._rank = factor, rank
        self._hooks: list[Any] = []
        self._parameters = ""  # a digest of which parameters this rank holds
        self._norms: list[tuple[str, torch.Tensor]] = []  # since the last step
        self._updates = 0  # since the last step
        self._found: list[torch.Tensor] = []  # above 0 if such an update was left out
        self._steps: dict[int, _Step] = {}
        self._heard = 0  # how many norms other ranks and this one have told
        self._least = 0.0  # norms up to here are usual

    def hook(self, held: Held) -> None:
        """Takes the norms of the gradients of these parameters from now on."""
        self.close()
        mine = [(piece, name, key) for piece, name, key
                in zip(held.pieces, held.names, held.keys, strict=True)
                if piece.kind == "parameter" and piece.outer is not None]
        self._parameters = digest_of(*(key for _, _, key in mine))
        self._hooks = [piece.outer.register_hook(functools.partial(self._take, name))
                       for piece, name, _ in mine if piece.outer.requires_grad]

    def restart(self) -> None:
        """Forgets the first norms: all ranks must have heard the same ones."""
        self._heard, self._least = 0, 0.0

    def close(self) -> None:
        """Removes the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._norms, self._steps = [], [], {}

    def _take(self, name: str, gradient: torch.Tensor) -> None:
        self._norms.append((name, norm_of(gradient)))

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Notes that an optimizer uses the gradients."""
        self._updates += 1
        found = found_inf_of(optimizer)
        self._found += [] if found is None else [found]

    def step(self, step: int, *, is_blind: bool) -> None:
        """Notes that the gradients since the last call belong to that step.

        `is_blind` says that nothing tells of updates, so that none counts as left out.
        """
        norms, found, updates = self._norms, self._found, self._updates
        self._norms, self._found, self._updates = [], [], 0
        if norms:
            # In one tensor, so that all of them are read from the device at once.
            device = norms[0][1].device
            figures = [one.to(device).reshape(1) for one in [*(n for _, n in norms), *found]]
            self._steps[step] = _Step([name for name, _ in norms], torch.cat(figures),
                                      is_blind or updates > 0)

    def message(self) -> dict[str, Any]:
        """What the other ranks need to know: the norm of all gradients of each step.

        A step that has overflowed is left out if its update was: that is what a gradient scaler
        does with a scale that is too large.
        """
        steps = [*self._steps.values()]
        if steps:
            figures = torch.cat([one.figures.to(steps[0].figures.device) for one in steps]).cpu()
            for one, part in zip(steps, figures.split([len(one.figures) for one in steps]),
                                 strict=True):
                one.read(part.tolist())
        totals = {str(step): one.total for step, one in self._steps.items() if one.is_compared}
        return {"of": self._parameters, "norms": totals}

    def hear(self, ranks: Sequence[Mapping[str, Any]],
             gather: Callable[[Any], list[Any]]) -> list[Alarm]:
        """The alarms about all ranks, given their messages; the same on all ranks."""
        for one in ranks:
            self._note_first(one["norms"].values())
        found = [alarm for rank in range(len(ranks)) for alarm in self._judge(ranks, rank)]
        steps, self._steps = self._steps, {}
        if not found:
            return []
        named = gather({str(one.step): steps[one.step].largest for one in found
                        if one.rank == self._rank})
        return [replace(one, tensor=named[one.rank][str(one.step)]) for one in found]

    def _note_first(self, norms: Iterable[float]) -> None:
        """Lets the first norms say which are too small to be compared."""
        for norm in norms:
            if self._heard < FIRST and math.isfinite(norm):
                self._heard += 1
                self._least = max(self._least, TINY * norm)

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
        if bound <= 0 or norm <= max(bound, self._least):
            return ""
        return f"at most {bound:.3g}, {self._factor:g} times the median of the other ranks"
