"""Guards: figures of a training that a fault makes unusual. holdfast.Watch says what each is.

A guard sees no bits. It finds faults that leave no other trace: in a gradient before ranks sum it
(dispersion.py), in a pass or an update (spikes.py), and damage that an update has already used
(ranges.py).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from holdfast.options import Watch
from holdfast.torch.watch.alarms import Alarm
from holdfast.torch.watch.dispersion import DispersionGuard
from holdfast.torch.watch.ranges import RangeGuard
from holdfast.torch.watch.replica_groups import Held
from holdfast.torch.watch.spikes import SpikeGuard
from holdfast.torch.watch.windows import OpenWindow, Windows


class Guards:
    """The guards of one rank, those that are on."""

    def __init__(self, options: Watch, rank: int, world: int) -> None:
        self._alone = world == 1
        self._spikes = None if options.spike is None else SpikeGuard(options.spike, rank)
        self._ranges = None if options.range is None else RangeGuard(options.range, rank)
        compares = options.dispersion is not None and not self._alone
        self._dispersion = DispersionGuard(options.dispersion, rank) if compares else None
        self._found: list[Alarm] = []
        self._rank = rank
        self.seconds = 0.0  # that they have taken beside the windows

    @property
    def look_at_updates(self) -> bool:
        """Whether before_update() must be called."""
        return self._spikes is not None or self._dispersion is not None

    def hook(self, held: Held) -> None:
        """Looks at these tensors from now on."""
        if self._dispersion is not None:
            self._dispersion.hook(held)

    def close(self) -> None:
        """Lets go of all tensors."""
        if self._dispersion is not None:
            self._dispersion.close()

    def restart(self) -> None:
        """Forgets what was usual before: training begins anew, from other values."""
        for guard in self._spikes, self._ranges, self._dispersion:
            if guard is not None:
                guard.restart()

    def step(self, step: int, loss: Any, *, is_blind: bool) -> None:
        """Notes what belongs to that step. `is_blind` says that nothing tells of updates."""
        if self._spikes is not None:
            self._spikes.note_loss(step, loss)
        if self._dispersion is not None:
            self._dispersion.step(step, is_blind=is_blind)

    def before_update(self, step: int, optimizer: torch.optim.Optimizer) -> None:
        """Notes the gradient that an optimizer is about to use."""
        if self._dispersion is not None:
            self._dispersion.before_update(optimizer)
        if self._spikes is not None:
            begin = time.perf_counter()
            self._spikes.note_gradient(step, optimizer)
            self.seconds += time.perf_counter() - begin

    def look(self, windows: Windows, opened: OpenWindow) -> None:
        """Looks at the elements in the window that was opened. The time counts as sealing."""
        if self._ranges is None:
            return
        begin = time.perf_counter()
        for group, first, last in windows.ranges(opened):
            self._found += self._ranges.look(group, first, last, opened.step)
        opened.sealing += time.perf_counter() - begin

    def take_alarms(self, *, wait: bool) -> list[Alarm]:
        """This rank's alarms since the last call. If `wait`, waits for figures on a GPU."""
        if self._spikes is not None:
            self._found += self._spikes.take_alarms(wait=wait)
        found, self._found = self._found, []
        return found

    def message(self) -> dict[str, Any]:
        """What this rank tells the others at a comparison."""
        told: dict[str, Any] = {"alarms": [one.packed() for one in self.take_alarms(wait=True)]}
        if self._dispersion is not None:
            told["dispersion"] = self._dispersion.message()
        return told

    def hear(self, messages: Sequence[Mapping[str, Any]],
             gather: Callable[[Any], list[Any]]) -> list[Alarm]:
        """The alarms of all ranks, the same on all. Figures that all ranks have are told once."""
        told = [Alarm.unpacked(one) for message in messages for one in message["alarms"]]
        once = {replace(one, rank=-1): one for one in reversed(told)}
        alarms = [*reversed(once.values())]
        if self._dispersion is not None and all("dispersion" in one for one in messages):
            alarms += self._dispersion.hear([one["dispersion"] for one in messages], gather)
        return alarms
