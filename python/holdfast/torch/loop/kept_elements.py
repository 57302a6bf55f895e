"""Keeps an element of the model's tensors after each step, to see later what was written to.

torch counts no write through `.data` or NumPy, with which trainings swap averages in. So a step
keeps the addresses of all tensors, and the bytes of one element of at most 32 of them, others after
each step: one small copy for each device, for which nothing waits. Averages differ from the weights
in nearly every element, so that a few elements are enough to see them.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import repeat

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from holdfast.torch.state.change_detection import positions_where

_AT_ONCE = 32  # elements that are kept after a step: with 300 tensors, all of this takes 40 µs
_PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)  # tensors whose memory holds their values

_address_of = torch.Tensor.data_ptr


class KeptElements:
    """One element of some of the tensors, and the addresses of all, as they were after a step."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._names, self._tensors = [], []
        for name, tensor in tensors.items():
            if _is_readable(tensor):
                self._names.append(name)
                self._tensors.append(tensor)
        self._is_distributed = any(isinstance(one, DTensor) for one in self._tensors)
        self._addresses = self._addresses_now()
        self._distance = max(1, -(-len(self._tensors) // _AT_ONCE))
        self._turn = 0
        self._groups: dict[int, list[_Group]] = {}  # by the turn in which they are kept
        self._kept: list[tuple[_Group, torch.Tensor]] = []  # with the bytes of its elements

    def keep(self) -> None:
        """Keeps elements and addresses as they are now."""
        addresses = self._addresses_now()
        if addresses != self._addresses:
            self._addresses, self._groups = addresses, {}
        self._turn = (self._turn + 1) % self._distance
        groups = self._groups.get(self._turn)
        if groups is None:
            groups = self._groups[self._turn] = self._make_groups()
        self._kept = [(group, torch.cat(group.elements)) for group in groups]

    def changed(self) -> list[str]:
        """Names of tensors that have another element now, or that were moved alone."""
        moved = set(positions_where(operator.ne, self._addresses_now(), self._addresses))
        known = {place for group, _ in self._kept for place in group.places}
        differ = {place for group, kept in self._kept for place in self._differing(group, kept)}
        if len(moved) < len(self._tensors):  # else all were moved as by model.cpu()
            differ |= moved - known
        return [self._names[place] for place in sorted(differ)]

    def _differing(self, group: "_Group", kept: torch.Tensor) -> list[int]:
        """The places of tensors whose elements are not the kept ones."""
        before, found, end = bytes(kept.cpu().numpy()), [], 0
        for place, element in zip(group.places, group.elements, strict=True):
            begin, end = end, end + element.numel()
            if _bytes_of(self._tensors[place]) != before[begin:end]:
                found.append(place)
        return found

    def _make_groups(self) -> list["_Group"]:
        """The elements that are kept in this turn, by their devices."""
        groups: dict[torch.device, _Group] = {}
        for place in range(self._turn, len(self._tensors), self._distance):
            if self._addresses[place]:  # else its memory is given back for a while
                element = _element_of(self._tensors[place])
                group = groups.setdefault(element.device, _Group())
                group.places.append(place)
                group.elements.append(element)
        return list(groups.values())

    def _addresses_now(self) -> list[int]:
        if self._is_distributed:
            return list(map(_address_of, map(_local_of, self._tensors)))
        return list(map(_address_of, self._tensors))


@dataclass
class _Group:
    """Tensors of one device: their places in the list of all, and a view of an element of each."""

    places: list[int] = field(default_factory=list)
    elements: list[torch.Tensor] = field(default_factory=list)


def _local_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _is_readable(tensor: torch.Tensor) -> bool:
    """True if the tensor has values in a memory of its own, of which one can be taken."""
    local = _local_of(tensor)
    return (type(local) in _PLAIN and local.layout is torch.strided and not local.is_meta
            and not local.is_quantized and local.numel() > 0)


@torch.no_grad()
def _element_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of the element in the middle: rows at an edge may be padding, which stays zero."""
    local = _local_of(tensor).detach()
    offset = sum(map(operator.mul, map(operator.floordiv, local.shape, repeat(2)), local.stride()))
    one = local.as_strided((1,), (1,), local.storage_offset() + offset)
    return one.view(torch.uint8)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return bytes(_element_of(tensor).cpu().numpy()) if _address_of(_local_of(tensor)) else b""
