"""Whether the tensors that were walked are still the ones that are there, told cheaply.

A walk over thousands of tensors costs milliseconds, and it is wanted at every save. Modules
and optimizers keep their tensors in dicts: to go through those again, and to look where the
tensors lie, costs a small part of that, for no Python code runs for each.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch.distributed.tensor import DTensor

_local_of = operator.attrgetter("_local_tensor")
_version_of = operator.attrgetter("_version")
_address_of = torch.Tensor.data_ptr
_END = object()  # of all values


class Watch:
    """What was found, and where.

    `stands_for(held, found)` says whether what is found now is as good as what was held:
    FSDP puts gathered parameters where the sharded ones are.
    """

    def __init__(self, stands_for: Callable[[Any, Any], bool]) -> None:
        self._stands_for = stands_for
        self._attributes: list[tuple[Any, str, Any]] = []
        self._empty: list[Mapping[Any, Any]] = []
        self._views: list[Iterable[Any]] = [(_END,)]  # of dicts: they show what is there now
        self._held: list[Any] = [_END]
        # Side by side: a dict, a key, and what was there.
        self._holders: list[Mapping[Any, Any]] = []
        self._keys: list[Any] = []
        self._items: list[Any] = []
        self._sizes: list[tuple[Mapping[Any, Any], int]] = []
        self._objects: list[tuple[Mapping[Any, Any], Any]] = []
        self._distributed: list[DTensor] = []
        self._locals: list[torch.Tensor] = []
        self._memories: list[torch.Tensor] = []
        self._addresses: list[int] = []

    def attribute(self, owner: Any, name: str) -> None:
        """The owner had that value by that name."""
        self._attributes.append((owner, name, getattr(owner, name)))

    def values(self, holder: Mapping[Any, Any], held: list[Any] | None = None) -> None:
        """The dict had these values and no others; None: those it has now."""
        held = list(holder.values()) if held is None else held
        if not held:
            self._empty.append(holder)
        elif isinstance(holder, dict):
            self._views[-1:] = [holder.values(), (_END,)]
            self._held[-1:] = [*held, _END]
        else:  # a script's, which makes them up
            self.items(holder, list(holder))

    def items(self, holder: Mapping[Any, Any], keys: Iterable[Any]) -> None:
        """The dict had as many entries as it has now, and by these keys these values."""
        self._sizes.append((holder, len(holder)))
        for key in keys:
            self._holders.append(holder)
            self._keys.append(key)
            self._items.append(holder[key])

    def object(self, holder: Mapping[Any, Any], key: Any) -> None:
        """Something that is no tensor was found there."""
        self._objects.append((holder, key))

    def memory(self, tensor: torch.Tensor) -> None:
        """The tensor's memory was where it is now."""
        memory = tensor
        if isinstance(tensor, DTensor):
            memory = tensor._local_tensor
            self._distributed.append(tensor)
            self._locals.append(memory)
        self._memories.append(memory)
        self._addresses.append(_address_of(memory))

    def same(self) -> bool:
        """True if all of it is as it was."""
        try:
            return (
                all(getattr(owner, name) is value for owner, name, value in self._attributes)
                and not any(self._empty)
                and (all(map(operator.is_, chain.from_iterable(self._views), self._held))
                     or self._stand_in())
                and all(len(holder) == size for holder, size in self._sizes)
                and all(map(operator.is_, map(operator.getitem, self._holders, self._keys),
                            self._items))
                and all(map(operator.is_, map(_local_of, self._distributed), self._locals))
                and list(map(_address_of, self._memories)) == self._addresses
                and all(_is_simple(holder.get(key)) for holder, key in self._objects)
            )
        except KeyError:  # no longer there
            return False

    def _stand_in(self) -> bool:
        """True if all that is not what it was stands for that."""
        found = list(chain.from_iterable(self._views))
        return len(found) == len(self._held) and all(
            now is held or self._stands_for(held, now)
            for now, held in zip(found, self._held, strict=True))


class Versions:
    """Of tensors by name, at two times: which were written to between."""

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        self._names = list(named)
        self._tensors = list(named.values())

    def now(self) -> list[int]:
        """Numbers alone: many new containers would make Python collect garbage, for 10 ms."""
        # Of DTensors, torch would look each time whether they have a way of their own.
        with torch._C.DisableTorchFunctionSubclass():
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
