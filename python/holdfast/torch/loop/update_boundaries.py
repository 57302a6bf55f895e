"""Which calls of a training loop lie between two updates, and which in the middle of one.

A checkpoint is made between updates: what was done then is in parameters and moments. In the
middle, gradients wait for an update that is still to come. That is so while gradients are
accumulated, also by one optimizer of several while the others make their steps.

Optimizers tell of their steps by hooks (optimizer_hooks.py). Some cannot: objects that only look like
an optimizer, and steps that a CUDA graph replays. There, parameters that were written to tell
of an update, and gradients that were written to tell that one is to come; if neither is seen,
every call is taken for the end of an update.
"""

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from holdfast.torch.state.gradients import unreduced

_PATIENCE = 16  # calls that a save waits for the end of an update, at least
_SAMPLE = 8  # parameters of an optimizer that are looked at
_FEW = 8  # optimizers; of more, only those are followed that have left out a call once
_INNER = ("optimizer", "optim", "base_optimizer", "_optimizer")  # where wrappers have theirs

_Seen = tuple[Any, int] | None  # of a gradient: a weak reference and its version


class Boundaries:
    """What the optimizers have done since the last call of the training loop."""

    def __init__(self, optimizers: Sequence[Any], models: Sequence[Any]) -> None:
        self._tracked = [_Tracked(one) for one in optimizers]
        self._models = models
        self._by_id = {id(inside): tracked for tracked in self._tracked
                       for inside in _with_inner(tracked.optimizer)}
        self._call = 0
        self._told = 0  # the call before which a hook last told of a step
        self._all_stepped = 0  # the last call before which all stepped
        self._longest = 1  # calls from one step of an optimizer to the next
        self._stepped: set[_Tracked] = set()  # since the last call
        self._done: set[_Tracked] = set()  # before the last call, since the one before
        # Those that do not step before every call, or may not: their gradients are followed.
        self._irregular = set(self._tracked if 1 < len(self._tracked) <= _FEW else ())

    @property
    def number(self) -> int:
        """How many optimizers there are."""
        return len(self._tracked)

    def knows(self, optimizer: torch.optim.Optimizer) -> bool:
        """True for one that was given, and for one inside a wrapper that was given."""
        return self._find(optimizer) is not None

    def updated(self, optimizer: torch.optim.Optimizer) -> bool:
        """The optimizer has made a step. False if it is none of these."""
        tracked = self._find(optimizer)
        if tracked is None:
            return False
        tracked.can_tell = True
        self._stepped.add(tracked)
        self._told = self._call + 1
        return True

    def look(self) -> None:
        """Called once by every call of the training loop."""
        self._call += 1
        self._done, self._stepped = self._stepped, set()
        if len(self._done) == len(self._tracked) and not self._irregular:
            self._longest = max(self._longest, self._call - self._all_stepped)
            self._all_stepped = self._call
        else:
            self._look_closer()

    @property
    def has_stepped(self) -> bool:
        """True if one has made a step since the last call."""
        return bool(self._stepped)

    @property
    def is_idle(self) -> bool:
        """True if no update was seen before the last call, as while gradients accumulate."""
        return bool(self._tracked) and not (self._done or self.updates_unseen)

    def is_middle(self) -> bool:
        """True if gradients wait for an update, as far as can be told."""
        if self.is_idle:
            return True
        waiting = [one for one in self._tracked if one not in self._done]
        return (any(one.has_pending() for one in waiting)
                or bool(waiting) and any(unreduced(model) for model in self._models))

    @property
    def patience(self) -> int:
        """Calls that a save waits for the end of an update before it is made nevertheless."""
        return max(_PATIENCE, 2 * self._longest)

    @property
    def updates_unseen(self) -> bool:
        """True if updates come without hooks: nothing tells of them, or has for long."""
        return any(not one.can_tell for one in self._tracked) or self._silence() > 0

    def _silence(self) -> int:
        """Calls since it was time for a hook to tell of a step; 0 and less before that."""
        return self._call - self._told - self.patience

    def _look_closer(self) -> None:
        for one in self._tracked:
            # One call early, so that it is known what has changed when it matters.
            if self._silence() >= 0 or not one.can_tell:
                if one.look_for_itself():
                    self._done.add(one)
            if one in self._done:
                self._longest = max(self._longest,
                                    self._call - max(one.last, self._all_stepped))
                one.last = self._call
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
        self.can_tell = any(isinstance(one, torch.optim.Optimizer)
                            for one in _with_inner(optimizer))  # by a hook
        self.last = 0  # the call before which it last stepped
        self._marks: list[_Seen] | None = None
        self._pending: bool | None = None  # as it was seen without hooks
        self._versions: list[int] | None = None
        self._sampled: tuple[list[int], list[torch.Tensor]] = ([], [])
        if not self.can_tell:
            self.look_for_itself()

    def shares(self, optimizer: Any) -> bool:
        """True if it has the very groups of this one: a wrapper's own."""
        mine, other = self.optimizer.param_groups, getattr(optimizer, "param_groups", None)
        return bool(mine) and bool(other) and (mine is other or mine[0] is other[0])

    def mark(self) -> None:
        """The gradients as they are now wait for nothing."""
        self._pending = None
        self._marks = [_seen(p.grad) for p in self._sample()]

    def has_pending(self) -> bool:
        """True if gradients were written to since they were marked; all, if they never were."""
        if self._pending is not None:
            return self._pending
        marks = self._marks or [None] * _SAMPLE
        return any(p.grad is not None and not _is_seen(p.grad, mark)
                   for p, mark in zip(self._sample(), marks, strict=False))

    def look_for_itself(self) -> bool:
        """True if parameters were written to since the last such look.

        Otherwise, gradients that were written to since then wait for an update.
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


def _with_inner(optimizer: Any) -> Iterator[Any]:
    """The optimizer, and those that it is wrapped around."""
    seen: list[Any] = []
    while hasattr(optimizer, "param_groups") and not any(optimizer is one for one in seen):
        yield optimizer
        seen.append(optimizer)
        inner = (getattr(optimizer, name, None) for name in _INNER)
        optimizer = next((one for one in inner if hasattr(one, "param_groups")), None)


def _seen(gradient: torch.Tensor | None) -> _Seen:
    return None if gradient is None else (weakref.ref(gradient), _version(gradient))


def _is_seen(gradient: torch.Tensor, mark: _Seen) -> bool:
    return mark is not None and mark[0]() is gradient and mark[1] == _version(gradient)


def _version(tensor: torch.Tensor) -> int:
    return (tensor._local_tensor if isinstance(tensor, DTensor) else tensor)._version
