"""Whether the tensors that were walked are still the ones that are there, told cheaply.

A walk over thousands of tensors costs milliseconds, and it is wanted at every save. Modules
and optimizers keep their tensors in dicts: to look each up there again, and its address,
costs a tenth of that.
"""

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

_local_of = operator.attrgetter("_local_tensor")
_version_of = operator.attrgetter("_version")


class Watch:
    """What was found, and where."""

    def __init__(self) -> None:
        # Side by side, so that no Python code runs for each.
        self._holders: list[Mapping[Any, Any]] = []
        self._keys: list[Any] = []
        self._held: list[torch.Tensor] = []
        self._distributed: list[DTensor] = []
        self._locals: list[torch.Tensor] = []
        self._memories: list[torch.Tensor] = []
        self._addresses: list[int] = []
        self._sizes: list[tuple[Mapping[Any, Any], int]] = []
        self._objects: list[tuple[Mapping[Any, Any], Any]] = []

    def tensor(self, holder: Mapping[Any, Any], key: Any, tensor: torch.Tensor) -> None:
        """It was found in that dict. A DTensor is watched itself: FSDP swaps it there."""
        memory = tensor
        if isinstance(tensor, DTensor):
            memory = tensor._local_tensor
            self._distributed.append(tensor)
            self._locals.append(memory)
        else:
            self._holders.append(holder)
            self._keys.append(key)
            self._held.append(tensor)
        self._memories.append(memory)
        self._addresses.append(memory.data_ptr())

    def object(self, holder: Mapping[Any, Any], key: Any) -> None:
        """Something that is no tensor was found there."""
        self._objects.append((holder, key))

    def size(self, holder: Mapping[Any, Any]) -> None:
        """The dict had as many entries as it has now."""
        self._sizes.append((holder, len(holder)))

    def same(self) -> bool:
        """True if all of it is as it was."""
        try:
            return (
                all(len(holder) == size for holder, size in self._sizes)
                and all(map(operator.is_, map(operator.getitem, self._holders, self._keys),
                            self._held))
                and all(map(operator.is_, map(_local_of, self._distributed), self._locals))
                and list(map(torch.Tensor.data_ptr, self._memories)) == self._addresses
                and all(_is_simple(holder.get(key)) for holder, key in self._objects)
            )
        except KeyError:  # no longer there
            return False


class Versions:
    """Of tensors by name, at two times: which were written to between."""

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        self._names = list(named)
        self._tensors = list(named.values())

    def now(self) -> list[int]:
        """Numbers alone: many new containers would make Python collect garbage, for 10 ms."""
        return list(map(_version_of, self._tensors))

    def changed(self, since: list[int]) -> list[str]:
        """Names of those that were written to, as far as their versions tell."""
        now = self.now()
        if now == since:
            return []
        return [name for name, a, b in zip(self._names, since, now, strict=True) if a != b]


def _is_simple(value: Any) -> bool:
    """True if no tensor can be in it."""
    return value is None or isinstance(value, (bool, int, float, str, bytes))
