"""Copies of the buffers of a model, which a forward pass may write to (BatchNorm).

Small buffers are copied before each step. Most large ones are tables that nothing writes to: they
are copied before the first steps only, to see whether they change. Later, torch's counter of
writes tells it, and an element of each, for writes that torch does not count (early_writes.py). A buffer that
was written to is copied again from then on. Copies take a limited amount of memory.
"""

import logging
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from holdfast.torch.loop.kept_elements import KeptElements
from holdfast.torch.recover.flat_copy import FlatCopy
from holdfast.torch.state.live_buffers import LiveBuffers, put_back

_log = logging.getLogger("holdfast")

_LARGE = 1 << 20  # bytes
_LOOKED_AT = 3  # steps in which all buffers are compared with their copies
_MOST = 48 << 20  # bytes of all copies, and 1 % of the parameters


class BuffersBeforeStep:
    """The copies for the newest step."""

    def __init__(self, models: list[Any]) -> None:
        self._live = LiveBuffers(models)
        self._most = _MOST + sum(one.nbytes for model in models for one in model.parameters()) // 100
        self._steps = 0
        self._written: set[str] = set()  # large buffers that are known to change
        self._left_out: set[str] = set()  # and those of them that there is no memory for
        self._flat = FlatCopy([])
        self._places: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._watched: dict[str, tuple[torch.Tensor, int]] = {}  # not copied; with its version
        self._elements, self._addresses = KeptElements({}), list[int]()  # of these
        self._looked_at: dict[str, tuple[torch.Tensor, int]] = {}  # copied, to see if it changes

    def keep(self) -> None:
        """Copies the buffers that may change."""
        chosen, size = [], 0
        self._watched, self._looked_at = {}, {}
        for name, one in self._live.now():
            is_large = one.nbytes > _LARGE
            if is_large and not self._is_copied(name, size + one.nbytes):
                self._watched[name] = (one, one._version)
                continue
            if is_large and name not in self._written:
                self._looked_at[name] = (one, len(chosen))
            chosen.append(local_of(one))
            size += one.nbytes
        self._places = self._live.places()
        if not self._flat.is_of(chosen):
            self._flat = FlatCopy(chosen)
        self._flat.take()
        self._keep_elements()

    def _keep_elements(self) -> None:
        addresses = [local_of(one).data_ptr() for one, _ in self._watched.values()]
        if addresses != self._addresses:
            watched = {name: one for name, (one, _) in self._watched.items()}
            self._elements, self._addresses = KeptElements(watched, at_once=len(watched) or 1), addresses
        self._elements.keep()

    def look(self) -> None:
        """After an undisturbed step: which large buffers has it changed?"""
        self._steps += 1
        found = [name for name, (one, place) in self._looked_at.items()
                 if not self._flat.equals(place)]
        self._written.update(found + self._written_to(may_wait=False))

    def restore(self) -> str:
        """Puts the buffers back. Returns why that was not possible, or ""."""
        put_back(self._places)
        self._flat.put_back()
        if found := self._written_to():
            return f"the step had written to the buffer {found[0]}, of which there was no copy"
        return ""

    def _written_to(self, *, may_wait: bool = True) -> list[str]:
        """The buffers that are not copied, and that were written to since keep(). `may_wait` for a GPU."""
        found = [name for name, (one, version) in self._watched.items() if one._version != version]
        if (may_wait or self._elements.are_on_host) and not self._elements.is_unchanged():
            found += self._elements.changed()
        return found

    def _is_copied(self, name: str, size: int) -> bool:
        if self._steps >= _LOOKED_AT and name not in self._written:
            return False
        if size <= self._most:
            return True
        if name in self._written and name not in self._left_out:
            self._left_out.add(name)
            _log.warning("buffer %s is written to by steps, and too large for a copy: all ranks "
                         "start again from a checkpoint if a rank dies in such a step", name)
        return False


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of this rank."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor.detach()
