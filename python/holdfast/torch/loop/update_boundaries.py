"""Tells calls of step() between two updates from calls in the middle of an update.

A checkpoint is made between updates, when all that training has done is in parameters and
moments. In the middle of an update, gradients wait for it: while they are accumulated, also by
one optimizer of several while the others make their steps.

Hooks report the steps of optimizers (optimizer_hooks.py). Two kinds of steps call no hook: those
of objects that only look like an optimizer, and those that a CUDA graph replays. For these, a
write to parameters shows that an update was made, and a write to gradients shows that one is to
come. If neither is seen, every call counts as the end of an update.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from holdfast.torch.state.gradients import has_unreduced_gradients
from holdfast.torch.state.optimizer_states import with_inner

_PATIENCE = 16  # a save waits at least so many calls for the end of an update
_SAMPLE = 8  # so many parameters of an optimizer are looked at
_FEW = 8  # if there are more optimizers, only those that skipped a call of step() are followed

_Seen = tuple[Any, int] | None  # a weak reference to a gradient, and its version


class UpdateBoundaries:
    """What the optimizers have done since the last call of the training loop."""

    def __init__(self, optimizers: Sequence[Any], models: Sequence[Any]) -> None:
        self._tracked = [_Tracked(one) for one in optimizers]
        self._models = models
        self._by_id = {id(inside): tracked for tracked in self._tracked
                       for inside in with_inner(tracked.optimizer)}
        self.call = 0  # the number of the newest call of step(), over all resumes
        self._last_hook = 0  # the call before which a hook last reported a step
        self._all_stepped = 0  # the last call before which all optimizers stepped
        self._longest = 1  # the most calls from one step of an optimizer to its next
        self.stepped: set[_Tracked] = set()  # since the last call
        self.done: set[_Tracked] = set()  # those before the last call, since the one before
        # Optimizers that may not step before every call: their gradients are followed.
        self._irregular = set(self._tracked if 1 < len(self._tracked) <= _FEW else ())

    @property
    def number(self) -> int:
        """How many optimizers there are."""
        return len(self._tracked)

    def knows(self, optimizer: torch.optim.Optimizer) -> bool:
        """True for an optimizer that was given, and for one inside a wrapper that was given."""
        return id(optimizer) in self._by_id or self._find(optimizer) is not None

    def note_update(self, optimizer: torch.optim.Optimizer) -> bool:
        """Notes that the optimizer has made a step. False if it is not known."""
        tracked = self._by_id.get(id(optimizer)) or self._find(optimizer)
        if tracked is None:
            return False
        tracked.has_hooks = True
        self.stepped.add(tracked)
        self._last_hook = self.call + 1
        return True

    def next_call(self) -> None:
        """Begins the next call of step(). To be called once in each."""
        self.call += 1
        self.done, self.stepped = self.stepped, set()
        if len(self.done) == len(self._tracked) and not self._irregular:
            self._longest = max(self._longest, self.call - self._all_stepped)
            self._all_stepped = self.call
        else:
            self._look_closer()

    def note_whole_step(self) -> None:
        """Notes that no gradients wait for an update, where a lost rank has prevented next_call().

        ck.run() makes whole updates, and the replacement of the lost rank has seen none of them.
        """
        self.done, self.stepped = set(self._tracked), set()

    @property
    def has_reported(self) -> bool:
        """True if a hook has reported an update. Before that, updates may be made by hand."""
        return self._last_hook > 0

    @property
    def is_idle(self) -> bool:
        """True if no update was seen before this call, as while gradients accumulate."""
        return not self.done and bool(self._tracked) and not self.updates_unseen

    def is_mid_update(self) -> bool:
        """True if gradients wait for an update, as far as can be told."""
        if self.is_idle:
            return True
        waiting = [one for one in self._tracked if one not in self.done]
        return (any(one.has_pending() for one in waiting)
                or bool(waiting) and any(has_unreduced_gradients(model) for model in self._models))

    @property
    def patience(self) -> int:
        """How many calls a save waits for the end of an update before it is made anyway."""
        return max(_PATIENCE, 2 * self._longest)

    @property
    def updates_unseen(self) -> bool:
        """True if updates call no hook: there is none, or it has been silent for long."""
        return any(not one.has_hooks for one in self._tracked) or self._silence() > 0

    def _silence(self) -> int:
        """How many calls ago a hook should have reported a step; 0 or less if none is late."""
        return self.call - self._last_hook - self.patience

    def _look_closer(self) -> None:
        for one in self._tracked:
            # Begins one call early, so that there are versions to compare with by then.
            if self._silence() >= 0 or not one.has_hooks:
                if one.look_for_writes():
                    self.done.add(one)
            if one in self.done:
                self._longest = max(self._longest,
                                    self.call - max(one.last, self._all_stepped))
                one.last = self.call
                if one in self._irregular:
                    one.mark()
            elif len(self._tracked) > 1:
                self._irregular.add(one)

    def _find(self, optimizer: Any) -> "_Tracked | None":
        tracked = self._by_id.get(id(optimizer))
        if tracked is None:
            tracked = next((one for one in self._tracked if one.shares(optimizer)), None)
            if tracked is not None:
                self._by_id[id(optimizer)] = tracked
        return tracked


class _Tracked:
    """One optimizer, and some of its parameters with their gradients."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.has_hooks = any(isinstance(one, torch.optim.Optimizer)
                             for one in with_inner(optimizer))
        self.last = 0  # the call before which it last stepped
        self._marks: list[_Seen] | None = None
        self._pending: bool | None = None  # what look_for_writes() found; None after hooks
        self._versions: list[int] | None = None
        self._sampled: tuple[list[int], list[torch.Tensor]] = ([], [])
        if not self.has_hooks:
            self.look_for_writes()

    def shares(self, optimizer: Any) -> bool:
        """True if both have the very same groups, as a wrapper and what it wraps have."""
        mine, other = self.optimizer.param_groups, getattr(optimizer, "param_groups", None)
        return bool(mine) and bool(other) and (mine is other or mine[0] is other[0])

    def mark(self) -> None:
        """Notes that the gradients, as they are now, wait for no update."""
        self._pending = None
        self._marks = [_seen(p.grad) for p in self._sample()]

    def has_pending(self) -> bool:
        """True if gradients were written to since mark(), or exist and were never marked."""
        if self._pending is not None:
            return self._pending
        marks = self._marks or [None] * _SAMPLE
        return any(p.grad is not None and not _is_seen(p.grad, mark)
                   for p, mark in zip(self._sample(), marks, strict=False))

    def look_for_writes(self) -> bool:
        """True if parameters were written to since the last call of this.

        If not, gradients that were written to since then wait for an update.
        """
        before, self._versions = self._versions, [_version(p) for p in self._sample()]
        has_moved = before is not None and before != self._versions
        self._pending = None
        pending = not has_moved and self.has_pending()
        self.mark()
        self._pending = pending
        return has_moved

    def _sample(self) -> list[torch.Tensor]:
        sizes = [len(group["params"]) for group in self.optimizer.param_groups]
        if sizes != self._sampled[0]:
            every = [p for group in self.optimizer.param_groups for p in group["params"]]
            chosen = every[::max(1, len(every) // _SAMPLE)][:_SAMPLE]
            self._sampled, self._marks = (sizes, chosen), None
        return self._sampled[1]


def _seen(gradient: torch.Tensor | None) -> _Seen:
    return None if gradient is None else (weakref.ref(gradient), _version(gradient))


def _is_seen(gradient: torch.Tensor, mark: _Seen) -> bool:
    return mark is not None and mark[0]() is gradient and mark[1] == _version(gradient)


def _version(tensor: torch.Tensor) -> int:
    return (tensor._local_tensor if isinstance(tensor, DTensor) else tensor)._version
