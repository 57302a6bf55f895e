"""Sees whether ck.step() stands in the wrong line of the training loop.

It belongs behind all that a step changes. In front of the update, at the top of the loop, or in
front of the step of the scheduler or the average's update, a resume loses one of these, or makes it
twice. Loops go round, so that only the first call of a process shows the order: what a wrong place
puts off is missing before the first call, and is made between all of the next calls.

Accumulated gradients are no wrong place: then no update is made between some of the calls.
"""

import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from holdfast.torch.loop.found_objects import calling_scaler, progress
from holdfast.torch.values.stored_attributes import inside

_CALLS = 4  # so many calls are looked at
_SAMPLE = 8  # so many parameters are looked at
_PACKAGE = __name__.partition(".")[0] + "."

_TEXT = ("{where}: ck.step() comes before {what}, so that a resume loses one of them or makes one twice; "
         "expected ck.step() as the last line of the loop")


class _Interval:
    """What was seen between two calls."""

    def __init__(self) -> None:
        self.updated = self.scaled = False
        self.gradients_waited = False  # the update used gradients that were there at the call
        self.late: set[str] = set()  # what moved after the call and before the next update
        self.moved: set[str] = set()  # what moved at all


class StepPlace:
    """The first calls of ck.step(), and what happened between them."""

    def __init__(self, optimizers: Sequence[Any], models: Sequence[nn.Module],
                 objects: Mapping[str, Any]) -> None:
        """`objects` has what the Checkpointer was given as scheduler, scaler and ema."""
        self._optimizers, self._models = optimizers, models
        self._followers = {"the step of the scheduler": objects.get("scheduler"),
                           "the update of the average": objects.get("ema")}
        self._scaler = objects.get("scaler")
        self.restart()

    def restart(self) -> None:
        """Begins anew: nothing that was done before belongs to a step."""
        self._intervals: list[_Interval] = []
        self._open: _Interval | None = _Interval() if self._optimizers else None
        self._lines: set[tuple[str, int]] = set()
        self._epochs: list[Any] = []
        self._had_gradients = False  # at the first call
        self._note()

    def before_update(self) -> None:
        """Called before the update of an optimizer that was given."""
        if self._open is None or self._open.updated:
            return
        if self._scaler is None and calling_scaler() is not None:
            self._open = None  # a scaler that was not given may have left out the first update
            return
        self._open.updated = True
        self._open.late = self._moved()
        self._open.gradients_waited = bool(self._gradients) and self._gradients == self._seen()

    def next_call(self, loader: Any) -> str:
        """Called in each ck.step(), with the loader of Holdfast or None. Returns a warning or ""."""
        if self._open is None:
            return ""
        done, self._open = self._open, _Interval()
        done.moved, done.scaled = self._moved(), _state_of(self._scaler) != self._scales
        self._intervals.append(done)
        self._epochs.append(None if loader is None else loader.epoch)
        self._lines.add(_caller())
        self._note()
        if len(self._intervals) == 1:
            self._had_gradients = bool(self._gradients)
        if len(self._intervals) < _CALLS and self._is_open():
            return ""
        self._open = None
        what = self._late() if len(self._intervals) == _CALLS else ""
        where = "{}:{}".format(*next(iter(self._lines)))
        return _TEXT.format(where=where, what=what) if what else ""

    def _is_open(self) -> bool:
        """False if no more calls are needed: ck.step() has several lines, or updates are rare."""
        return len(self._lines) == 1 and all(one.updated for one in self._intervals[1:])

    def _late(self) -> str:
        """What comes after the call although it belongs before it; "" if nothing does."""
        first, *others = self._intervals
        if not self._is_open():
            return ""
        if not first.updated:
            waited = all(one.gradients_waited for one in others)
            is_late = waited if self._had_gradients else not first.scaled
            return "the update of the optimizer" if is_late else ""
        if len(set(map(repr, self._epochs))) == _CALLS and self._epochs[0] is not None:
            return ""  # each step is an epoch, whose end comes after it
        return next((what for what in self._followers
                     if what not in first.moved and all(what in one.late for one in others)), "")

    def _note(self) -> None:
        """Notes what is there now, to compare with later."""
        self._states = {what: _state_of(one, self._models)
                        for what, one in self._followers.items()}
        self._scales = _state_of(self._scaler)
        self._gradients = self._seen()

    def _moved(self) -> set[str]:
        return {what for what, one in self._followers.items()
                if _state_of(one, self._models) != self._states[what]}

    def _seen(self) -> list[tuple[int, int]]:
        """Identities and versions of some gradients that are there now."""
        every = [p for one in self._optimizers for group in one.param_groups
                 for p in group["params"]]
        chosen = every[::max(1, len(every) // _SAMPLE)][:_SAMPLE]
        return [_mark(p.grad) for p in chosen if p.grad is not None]


def _state_of(given: Any, models: Sequence[nn.Module] = ()) -> list[Any]:
    """Numbers and versions that move when one of the given objects makes a step."""
    found: list[Any] = []
    for one in inside([given], but=torch.optim.Optimizer):
        if isinstance(one, nn.Module):
            own = () if any(one is model for model in models) else (one.buffers(), one.parameters())
            found += [_mark(tensor) for tensors in own for tensor in islice(tensors, 2)]
        elif isinstance(one, dict | list | tuple):
            held = one.values() if isinstance(one, dict) else one
            found += [_mark(tensor) for tensor in islice(held, 4) if type(tensor) is torch.Tensor]
        else:
            found.append(progress(one))
    return found


def _mark(tensor: torch.Tensor) -> tuple[int, int]:
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return id(tensor), 0 if local.is_inference() else local._version


def _caller() -> tuple[str, int]:
    """The file and the line of the program that has called ck.step()."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
