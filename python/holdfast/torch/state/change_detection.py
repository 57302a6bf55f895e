"""A cheap test whether modules and optimizers still hold the tensors that a walk found.

A walk over thousands of tensors takes milliseconds, and every save needs to know that its
tensors are still the right ones. Modules and optimizers keep their tensors in dicts. Comparing
those dicts and the addresses of the tensors takes a small part of a walk, because no Python code
runs for each tensor.

If a tensor replaced another, its tag says which one, so that the others need not be walked
again: some modules and optimizers assign a new tensor in every step.
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
_is_contiguous = torch.Tensor.is_contiguous
_END = object()  # stands behind all values
_NEVER_WRITTEN = torch.empty(0)  # stands for tensors whose writes torch does not count


class ChangeDetector:
    """Remembers which values a walk found in which dicts, and compares.

    `stands_for(held, found)` says whether a value that is found now counts as the one that was
    held before: FSDP puts gathered parameters in the place of sharded ones.
    """

    def __init__(self, stands_for: Callable[[Any, Any], bool]) -> None:
        self._stands_for = stands_for
        self._attributes: list[tuple[Any, str, Any]] = []
        self._empty: list[Mapping[Any, Any]] = []
        self._views: list[Iterable[Any]] = [(_END,)]  # dict views: they show what is there now
        self._held: list[Any] = [_END]
        # Three lists side by side: a dict, a key, and the value that was there.
        self._holders: list[Mapping[Any, Any]] = []
        self._keys: list[Any] = []
        self._items: list[Any] = []
        self._sizes: list[tuple[Mapping[Any, Any], int]] = []
        self._objects: list[tuple[Mapping[Any, Any], Any]] = []
        self._distributed: list[DTensor] = []
        self._locals: list[torch.Tensor] = []
        self._memories: list[torch.Tensor] = []
        self._addresses: list[int] = []
        self._tensors: list[torch.Tensor] = []  # the tensors of _memories
        self._laid_out: list[torch.Tensor] = []  # those of _memories whose strides may not change
        self._contiguous: list[bool] = []  # whether each of them lies in the usual way
        # The tags of _held, _items, _distributed and _memories, and where each tag is listed.
        self._held_tags: list[int | None] = [None]
        self._item_tags: list[int | None] = []
        self._distributed_tags: list[int | None] = []
        self._memory_tags: list[int | None] = []
        self._listed: dict[int, list[tuple[list[Any], int]]] = {}
        self._memory_of: dict[int, tuple[int, int | None]] = {}

    def expect_attribute(self, owner: Any, name: str) -> None:
        """Expects the attribute to stay the object that it is now."""
        self._attributes.append((owner, name, getattr(owner, name)))

    def expect_values(self, holder: Mapping[Any, Any], held: list[Any] | None = None,
               tags: Sequence[int | None] | None = None) -> None:
        """Expects the dict to have these values and no others; None means those it has now."""
        held = list(holder.values()) if held is None else held
        if not held:
            self._empty.append(holder)
        elif isinstance(holder, dict):
            tags = [None] * len(held) if tags is None else tags
            self._list(self._held, len(self._held) - 1, tags)
            self._views[-1:] = [holder.values(), (_END,)]
            self._held[-1:] = [*held, _END]
            self._held_tags[-1:] = [*tags, None]
        else:  # a TorchScript module makes up its dicts at each call
            self.expect_items(holder, list(holder))

    def expect_items(self, holder: Mapping[Any, Any], keys: Sequence[Any],
              tags: Sequence[int | None] | None = None) -> None:
        """Expects the dict to keep its size, and its values at these keys."""
        tags = [None] * len(keys) if tags is None else tags
        self._list(self._items, len(self._items), tags)
        self._item_tags += tags
        self._sizes.append((holder, len(holder)))
        for key in keys:
            self._holders.append(holder)
            self._keys.append(key)
            self._items.append(holder[key])

    def expect_no_tensor(self, holder: Mapping[Any, Any], key: Any) -> None:
        """Expects that no tensor is put at that key, where none was found."""
        self._objects.append((holder, key))

    def expect_memory(self, tensor: torch.Tensor, tag: int | None = None) -> None:
        """Expects the tensor's memory to stay at its address."""
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

    def expect_layout(self, tensor: torch.Tensor) -> None:
        """Expects the tensor not to be transposed in its place (`p.data = p.data.t()`).

        Asking for strides would make a tuple for each tensor, which takes longer.
        """
        memory = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        self._laid_out.append(memory)
        self._contiguous.append(_is_contiguous(memory))

    def _same_layouts(self) -> bool:
        return list(map(_is_contiguous, self._laid_out)) == self._contiguous

    def is_unchanged(self) -> bool:
        """True if everything is as expected."""
        try:
            return (
                self._same_structure()
                and (all(map(operator.is_, chain.from_iterable(self._views), self._held))
                     or self._stand_in())
                and all(map(operator.is_, map(operator.getitem, self._holders, self._keys),
                            self._items))
                and all(map(operator.is_, map(_local_of, self._distributed), self._locals))
                and list(map(_address_of, self._memories)) == self._addresses
                and self._same_layouts()
            )
        except KeyError:  # an expected key is gone
            return False

    def replaced(self) -> dict[int, torch.Tensor] | None:
        """The tensors that replaced others, by the tags of the tensors before them.

        None if anything else has changed. A tensor whose memory alone has moved is listed as
        its own replacement.
        """
        try:
            same = self._same_structure() and self._same_layouts()
            changes = list(self._changes()) if same else [(None, None)]
        except KeyError:
            return None
        found: dict[int, torch.Tensor] = {}
        for tag, now in changes:
            if tag is None or not isinstance(now, torch.Tensor):
                return None
            found.setdefault(tag, now)
        return found

    def update(self, tag: int, tensor: torch.Tensor) -> None:
        """Expects that tensor from now on; it must be of the same class as the one before."""
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
        """True if no dict was replaced or has grown, and no tensor is where none was."""
        return (
            all(getattr(owner, name) is value for owner, name, value in self._attributes)
            and not any(self._empty)
            and all(len(holder) == size for holder, size in self._sizes)
            and all(_is_simple(holder.get(key)) for holder, key in self._objects)
        )

    def _changes(self) -> Iterator[tuple[int | None, Any]]:
        """(tag, value that is there now) of all values that are not as expected."""
        found = list(chain.from_iterable(self._views))
        if len(found) != len(self._held):
            yield None, None
            return
        for k in positions_where(operator.is_not, found, self._held):
            if not self._stands_for(self._held[k], found[k]):
                yield self._held_tags[k], found[k]
        items = list(map(operator.getitem, self._holders, self._keys))
        for k in positions_where(operator.is_not, items, self._items):
            yield self._item_tags[k], items[k]
        locals_ = list(map(_local_of, self._distributed))
        for k in positions_where(operator.is_not, locals_, self._locals):
            yield self._distributed_tags[k], self._distributed[k]
        addresses = list(map(_address_of, self._memories))
        for k in positions_where(operator.ne, addresses, self._addresses):
            yield self._memory_tags[k], self._tensors[k]

    def _stand_in(self) -> bool:
        """True if each unexpected value counts as the expected one."""
        found = list(chain.from_iterable(self._views))
        return len(found) == len(self._held) and all(
            now is held or self._stands_for(held, now)
            for now, held in zip(found, self._held, strict=True))


class TensorVersions:
    """Tells which of several tensors were written to, by the versions that torch counts.

    torch counts none for tensors that were made in inference mode. They count as never written to.
    """

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        self._names = list(named)
        self._places = {name: k for k, name in enumerate(named)}
        self._tensors = list(map(with_version, named.values()))
        self._are_plain = not any(isinstance(one, DTensor) for one in self._tensors)

    def replaced(self, named: Mapping[str, torch.Tensor | None]) -> "TensorVersions":
        """The same tensors, with those of these names replaced; unknown names are ignored."""
        made = TensorVersions({})
        made._names, made._places = self._names, self._places
        made._tensors, made._are_plain = list(self._tensors), False
        for name, tensor in named.items():
            if name in made._places and tensor is not None:
                made._tensors[made._places[name]] = with_version(tensor)
        return made

    def now(self) -> list[int]:
        """The versions now, in one list of numbers.

        Many new containers would make Python collect garbage, which takes 10 ms.
        """
        if self._are_plain:
            return list(map(_version_of, self._tensors))
        # Without this, torch would look for a __torch_function__ of each DTensor.
        with torch._C.DisableTorchFunctionSubclass():
            return list(map(_version_of, self._tensors))

    def changed(self, since: list[int]) -> list[str]:
        """Names of tensors whose versions are not those of `since`."""
        now = self.now()
        if now == since:
            return []
        return [name for name, a, b in zip(self._names, since, now, strict=True) if a != b]


def positions_where(differ: Callable[[Any, Any], Any], one: Iterable[Any],
              other: Iterable[Any]) -> list[int]:
    """The positions at which two lists differ, found without Python code for each item."""
    return list(compress(count(), map(differ, one, other)))


def with_version(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or one that is never written to if torch counts no versions for it."""
    return _NEVER_WRITTEN if tensor.is_inference() else tensor


def _is_simple(value: Any) -> bool:
    """True if the value cannot hold a tensor."""
    return value is None or isinstance(value, (bool, int, float, str, bytes))
