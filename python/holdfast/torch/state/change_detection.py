"""Whether the tensors that were walked are still the ones that are there, told cheaply.

A walk over thousands of tensors costs milliseconds, and it is wanted at every save. Modules
and optimizers keep their tensors in dicts: to go through those again, and to look where the
tensors lie, costs a small part of that, for no Python code runs for each.

Where a tensor was put in place of another, its tag says which one, so that the others need
not be walked again: some modules and optimizers assign a new tensor in every step.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, count
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
        self._tensors: list[torch.Tensor] = []  # whose memories these are
        # The tags beside _held, _items, _distributed and _memories, and where a tag stands there.
        self._held_tags: list[int | None] = [None]
        self._item_tags: list[int | None] = []
        self._distributed_tags: list[int | None] = []
        self._memory_tags: list[int | None] = []
        self._listed: dict[int, list[tuple[list[Any], int]]] = {}
        self._memory_of: dict[int, tuple[int, int | None]] = {}

    def attribute(self, owner: Any, name: str) -> None:
        """The owner had that value by that name."""
        self._attributes.append((owner, name, getattr(owner, name)))

    def values(self, holder: Mapping[Any, Any], held: list[Any] | None = None,
               tags: Sequence[int | None] | None = None) -> None:
        """The dict had these values and no others; None: those it has now."""
        held = list(holder.values()) if held is None else held
        if not held:
            self._empty.append(holder)
        elif isinstance(holder, dict):
            tags = [None] * len(held) if tags is None else tags
            self._list(self._held, len(self._held) - 1, tags)
            self._views[-1:] = [holder.values(), (_END,)]
            self._held[-1:] = [*held, _END]
            self._held_tags[-1:] = [*tags, None]
        else:  # a script's, which makes them up
            self.items(holder, list(holder))

    def items(self, holder: Mapping[Any, Any], keys: Sequence[Any],
              tags: Sequence[int | None] | None = None) -> None:
        """The dict had as many entries as it has now, and by these keys these values."""
        tags = [None] * len(keys) if tags is None else tags
        self._list(self._items, len(self._items), tags)
        self._item_tags += tags
        self._sizes.append((holder, len(holder)))
        for key in keys:
            self._holders.append(holder)
            self._keys.append(key)
            self._items.append(holder[key])

    def object(self, holder: Mapping[Any, Any], key: Any) -> None:
        """Something that is no tensor was found there."""
        self._objects.append((holder, key))

    def memory(self, tensor: torch.Tensor, tag: int | None = None) -> None:
        """The tensor's memory was where it is now."""
        memory, distributed = tensor, None
        if isinstance(tensor, DTensor):
            memory, distributed = tensor._local_tensor, len(self._distributed)
            self._distributed.append(tensor)
            self._distributed_tags.append(tag)
            self._locals.append(memory)
        if tag is not None:
            self._memory_of[tag] = len(self._memories), distributed
        self._tensors.append(tensor)
        self._memories.append(memory)
        self._memory_tags.append(tag)
        self._addresses.append(_address_of(memory))

    def same(self) -> bool:
        """True if all of it is as it was."""
        try:
            return (
                self._same_structure()
                and (all(map(operator.is_, chain.from_iterable(self._views), self._held))
                     or self._stand_in())
                and all(map(operator.is_, map(operator.getitem, self._holders, self._keys),
                            self._items))
                and all(map(operator.is_, map(_local_of, self._distributed), self._locals))
                and list(map(_address_of, self._memories)) == self._addresses
            )
        except KeyError:  # no longer there
            return False

    def replaced(self) -> dict[int, torch.Tensor] | None:
        """The tensors that are there now, by the tags of those that were there before.

        None if anything else has changed. A tensor whose memory alone has moved is itself.
        """
        try:
            changes = list(self._changes()) if self._same_structure() else [(None, None)]
        except KeyError:
            return None
        found: dict[int, torch.Tensor] = {}
        for tag, now in changes:
            if tag is None or not isinstance(now, torch.Tensor):
                return None
            found.setdefault(tag, now)
        return found

    def update(self, tag: int, tensor: torch.Tensor) -> None:
        """From now on that tensor is the one that was found; of the same class as before."""
        for listed, place in self._listed.get(tag, ()):
            listed[place] = tensor
        place, distributed = self._memory_of[tag]
        memory = tensor
        if distributed is not None:
            memory = _local_of(tensor)
            self._distributed[distributed] = tensor  # type: ignore[call-overload]
            self._locals[distributed] = memory
        self._tensors[place], self._memories[place] = tensor, memory
        self._addresses[place] = _address_of(memory)

    def _list(self, into: list[Any], first: int, tags: Sequence[int | None]) -> None:
        for place, tag in enumerate(tags, first):
            if tag is not None:
                self._listed.setdefault(tag, []).append((into, place))

    def _same_structure(self) -> bool:
        """True if no dict was replaced or has grown, and where no tensor was, none is."""
        return (
            all(getattr(owner, name) is value for owner, name, value in self._attributes)
            and not any(self._empty)
            and all(len(holder) == size for holder, size in self._sizes)
            and all(_is_simple(holder.get(key)) for holder, key in self._objects)
        )

    def _changes(self) -> Iterator[tuple[int | None, Any]]:
        """(tag, what is there now) of all that is not what it was."""
        found = list(chain.from_iterable(self._views))
        if len(found) != len(self._held):
            yield None, None
            return
        for k in places_of(operator.is_not, found, self._held):
            if not self._stands_for(self._held[k], found[k]):
                yield self._held_tags[k], found[k]
        items = list(map(operator.getitem, self._holders, self._keys))
        for k in places_of(operator.is_not, items, self._items):
            yield self._item_tags[k], items[k]
        locals_ = list(map(_local_of, self._distributed))
        for k in places_of(operator.is_not, locals_, self._locals):
            yield self._distributed_tags[k], self._distributed[k]
        addresses = list(map(_address_of, self._memories))
        for k in places_of(operator.ne, addresses, self._addresses):
            yield self._memory_tags[k], self._tensors[k]

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
        self._places = {name: k for k, name in enumerate(named)}
        self._tensors = list(named.values())

    def replaced(self, named: Mapping[str, torch.Tensor | None]) -> "Versions":
        """The same, with others for those of these names that it has."""
        made = Versions({})
        made._names, made._places = self._names, self._places
        made._tensors = list(self._tensors)
        for name, tensor in named.items():
            if name in made._places and tensor is not None:
                made._tensors[made._places[name]] = tensor
        return made

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


def places_of(differ: Callable[[Any, Any], Any], one: Iterable[Any],
              other: Iterable[Any]) -> list[int]:
    """Where two lists differ, told without Python code that runs for each of their items."""
    return list(compress(count(), map(differ, one, other)))


def _is_simple(value: Any) -> bool:
    """True if no tensor can be in it."""
    return value is None or isinstance(value, (bool, int, float, str, bytes))
