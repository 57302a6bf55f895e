"""The arguments of a step, which must be the same when it is made again.

A step may change its batch: x.mul_(2), batch.pop("labels"). Lists and dicts are put back as they
were. Tensors are not copied at first. torch counts the writes to a tensor, so an undisturbed
step that writes to its batch is noticed, and from then on a copy is kept.
"""

import logging
from typing import Any

import torch

_log = logging.getLogger("holdfast")

MOST_BYTES = 16 << 20  # of the copies of tensors
_MOST_ITEMS = 4096  # of a list or dict; a longer one is no batch
_DEEPEST = 4


class StepInputs:
    """The arguments of the newest step."""

    def __init__(self) -> None:
        self._containers: list[tuple[Any, Any]] = []  # lists and dicts, with a copy of each
        self._tensors: list[torch.Tensor] = []
        self._versions: list[int] = []
        # Copies of the tensors; empty until a step was seen to write to one, or if they are large.
        self._copies: list[torch.Tensor] = []
        self._keeps_copies = False

    def keep(self, args: Any, kwargs: Any) -> None:
        """Keeps the arguments as they are now."""
        self._containers, self._tensors = [], []
        for one in (*args, *kwargs.values()):
            self._visit(one, 0)
        self._versions = [one._version for one in self._tensors]
        self._copies = []
        if self._keeps_copies and sum(one.nbytes for one in self._tensors) <= MOST_BYTES:
            with torch.no_grad():
                self._copies = [one.detach().clone() for one in self._tensors]

    def add(self, batch: Any) -> None:
        """Watches a batch that was read inside of the step, too; no copy of it is kept."""
        known = len(self._tensors)
        self._visit(batch, 0)
        self._versions += [one._version for one in self._tensors[known:]]

    def look(self, function: str) -> None:
        """After an undisturbed step: has it changed its batch?"""
        if self._keeps_copies or not self._changed():
            return
        self._keeps_copies = True
        size = sum(one.nbytes for one in self._tensors)
        then = ("a copy is kept from now on" if size <= MOST_BYTES else
                f"its {size >> 20} MiB are too many for a copy, so all ranks start again from a "
                "checkpoint if a rank dies in such a step")
        _log.warning("ck.run(%s) writes to its batch: %s; expected a step that makes tensors of its "
                     "own", function, then)

    def restore(self) -> str:
        """Puts the arguments back. Returns why that was not possible, or ""."""
        for container, copy in self._containers:
            if isinstance(container, list):
                container[:] = copy
            else:
                container.clear()
                container.update(copy)
        changed = self._changed()
        if any(index >= len(self._copies) for index in changed):
            return "the step had written to its batch, of which there was no copy"
        with torch.no_grad():
            for index in changed:
                self._tensors[index].copy_(self._copies[index])
        return ""

    def _changed(self) -> list[int]:
        """The places of the tensors that were written to."""
        return [index for index, one in enumerate(self._tensors)
                if one._version != self._versions[index]]

    def _visit(self, one: Any, depth: int) -> None:
        if isinstance(one, torch.Tensor):
            if not one.is_inference():
                self._tensors.append(one)
        elif isinstance(one, (list, tuple, dict)) and len(one) <= _MOST_ITEMS and depth < _DEEPEST:
            if not isinstance(one, tuple):
                self._containers.append((one, one.copy()))
            for item in list(one.values() if isinstance(one, dict) else one):
                self._visit(item, depth + 1)
