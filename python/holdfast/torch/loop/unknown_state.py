"""Finds optimizers, schedulers and scalers that take part in a training and were not given.

Their state is not saved, so that they begin anew after a resume. What counts are steps that they
make between two calls of ck.step(). A hook tells of those of optimizers, and is called from inside
of a scaler. Schedulers are looked for at the first ck.step(), if an optimizer has the mark of one,
and once more later; they have made a step when their counters have moved.
"""

import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from holdfast.torch.loop.found_objects import calling_scaler, progress, schedulers_of
from holdfast.torch.loop.update_boundaries import UpdateBoundaries
from holdfast.torch.values.stored_attributes import inside

_INTERVALS = 2  # an optimizer that steps between so many pairs of calls is part of the training
_LATER = 10.0  # seconds of training after which schedulers without a mark are looked for


class _Optimizer:
    """An optimizer that was not given, and between how many pairs of calls it made steps."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.ref = weakref.ref(optimizer)
        self.intervals, self.last = 0, 0

    def note(self, call: int) -> None:
        if call > self.last:  # call 0 is before the first ck.step(), which may be another training
            self.last = call
            self.intervals += 1


class UnknownState:
    """What was found, by one Checkpointer: `found` has a sentence for each."""

    def __init__(self, given: Sequence[Any], optimizers: Sequence[Any],
                 boundaries: UpdateBoundaries,
                 model_tensors: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        """`given` is all that the Checkpointer saves beside the model; `optimizers` are those in
        it, also inside of others, which `boundaries` knows; it counts the calls of ck.step()."""
        self.found: dict[str, str] = {}
        self._given, self._known = given, optimizers
        self._boundaries, self._model_tensors = boundaries, model_tensors
        self._optimizers: dict[int, _Optimizer] = {}
        self._scalers: dict[int, weakref.ref[Any]] = {}
        # Schedulers that were not given, with their progress when they were found.
        self._schedulers: dict[int, tuple[weakref.ref[Any], list[Any]]] = {}
        self._told: set[int] = set()
        self._looks_again = time.monotonic() + _LATER
        _live.add(self)

    def before_update(self) -> None:
        """Notes the scaler, if there is one, that makes the step of an optimizer that was given."""
        if 0 < self._boundaries.call <= _INTERVALS and (scaler := calling_scaler()) is not None:
            self._scalers[id(scaler)] = weakref.ref(scaler)

    def note_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Notes a step of an optimizer that was not given."""
        known = self._optimizers.get(id(optimizer))
        if known is None or known.ref() is not optimizer:  # another one may have had this id
            known = self._optimizers[id(optimizer)] = _Optimizer(optimizer)
        known.note(self._boundaries.call)

    def look_for_schedulers(self) -> None:
        """Called in the first calls of ck.step(). Only the first one of all looks."""
        if self._boundaries.call == 1 and any("initial_lr" in group for one in self._known
                                   for group in one.param_groups):
            self._find_schedulers()

    def look(self) -> None:
        """Adds to `found` what has made steps. Called at a save."""
        self._look_at_optimizers()
        for scaler in [ref() for ref in self._scalers.values()]:
            if scaler is not None and id(scaler) not in self._told and not _is_saved(scaler):
                self._told.add(id(scaler))
                self._add("scaler", scaler, "its scale begins anew after a resume; expected it in "
                          "scaler=")
        self._scalers = {}
        self._look_at_schedulers()
        if time.monotonic() > self._looks_again:
            self._looks_again = math.inf
            self._find_schedulers()

    def saves(self, one: Any) -> bool:
        """True if the object is given, or inside of one that is."""
        return any(one is other for other in inside(self._given))

    def _look_at_optimizers(self) -> None:
        for known in [*self._optimizers.values()]:
            optimizer = known.ref()
            if optimizer is not None and known.intervals >= _INTERVALS:
                if id(optimizer) not in self._told and not _is_saved(optimizer):
                    self._add("optimizer", optimizer, self._about_optimizer(optimizer))
                self._told.add(id(optimizer))
                known.intervals = 0

    def _find_schedulers(self) -> None:
        found = [one for one in schedulers_of(self._known)
                 if not _is_saved(one) and type(one).__weakrefoffset__]
        for one in found:
            # A scheduler inside of another one is told of with that one.
            is_inner = any(one is part for other in found if other is not one
                           for part in inside([other]))
            if not is_inner and id(one) not in self._schedulers:
                self._schedulers[id(one)] = weakref.ref(one), progress(one)

    def _look_at_schedulers(self) -> None:
        for ref, before in [*self._schedulers.values()]:
            one = ref()
            if one is not None and id(one) not in self._told and progress(one) != before:
                self._told.add(id(one))
                self._add("scheduler", one, "it begins anew after a resume; expected it in "
                          "scheduler=")

    def _about_optimizer(self, optimizer: torch.optim.Optimizer) -> str:
        updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
        names = [name for name, tensor in self._model_tensors().items() if id(tensor) in updated]
        if names:
            return f"it updates {names[0]} and begins anew after a resume; expected it in optimizer="
        return ("it and what it updates begin anew after a resume; expected its parameters in "
                "model=, and it in optimizer=")

    def _add(self, kind: str, one: Any, text: str) -> None:
        name, number = f"{kind} {type(one).__name__}", 2
        while name in self.found:
            name, number = f"{kind} {type(one).__name__} {number}", number + 1
        self.found[name] = (f"{kind}: {type(one).__name__} takes part in the training, and the "
                            f"Checkpointer was not given it: {text}")


_live: "weakref.WeakSet[UnknownState]" = weakref.WeakSet()  # of all Checkpointers


def _is_saved(one: Any) -> bool:
    """True if a Checkpointer of this process saves the object, perhaps inside of another one."""
    is_optimizer = issubclass(type(one), torch.optim.Optimizer)
    return any(is_optimizer and live._boundaries.knows(one) or live.saves(one) for live in list(_live))
