"""Keeps an element of the model's tensors after each step, to see later what was written to.

torch counts no write through `.data` or NumPy, with which trainings swap averages in. So a step
keeps the addresses and the bytes of one element of some tensors (`at_once`), others after each step: one
small copy for each device, for which nothing waits. Averages differ from the weights in nearly every
element, so that a few elements are enough to see them. All addresses are looked at after the first
steps, because a training may itself put new tensors in the place of old ones; then addresses tell
nothing.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, pairwise, repeat
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from holdfast._native import ElementReader

_AT_ONCE = 8  # tensors that are looked at after a step, to cost it only microseconds
_PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)  # tensors whose memory holds their values

_address_of = torch.Tensor.data_ptr
_local_tensor_of = operator.attrgetter("_local_tensor")


@dataclass
class _Turn:
    """The tensors that are looked at after the same steps, by their places in the list of all."""

    places: list[int]
    addresses_now: Callable[[], Iterable[int]]
    addresses: list[int]
    on_host: dict[int, int]  # the places of tensors in main memory, and the sizes of an element
    host: ElementReader  # reads an element of each of these
    elements: dict[torch.device, list[tuple[int, torch.Tensor]]]  # a view of an element of others


class KeptElements:
    """One element of some of the tensors, and the addresses of all, as they were after a step."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], at_once: int = _AT_ONCE) -> None:
        """`at_once` is the number of tensors that are looked at after a step."""
        readable = {name: one for name, one in tensors.items() if is_readable(one)}
        self._names, self._tensors = list(readable), list(readable.values())
        distance = max(1, -(-len(readable) // at_once))
        self._turns = [self._make_turn(range(first, len(readable), distance))
                       for first in range(distance)]
        self._steps = 0
        self._moves = False  # training itself has put tensors in the place of others
        # The elements in main memory, in one string, and the turn that they are of.
        self._kept_on_host: tuple[bytes | None, _Turn | None] = None, None
        self._kept: list[tuple[list[tuple[int, torch.Tensor]], torch.Tensor]] = []

    def keep(self) -> None:
        """Keeps elements and addresses as they are now."""
        self._steps += 1
        if self._steps < 2 * len(self._turns):
            for other in range(len(self._turns)):
                self._look(other)
        number = self._steps % len(self._turns)
        turn = self._turns[number]
        kept = turn.host.read(turn.addresses_now())
        if kept is None:
            turn = self._look(number)
            kept = turn.host.read(turn.addresses_now())
        self._kept_on_host, self._kept = (kept, turn), []
        if turn.elements:
            self._kept = [(group, torch.cat([one for _, one in group]))
                          for group in turn.elements.values()]

    def is_unchanged(self) -> bool:
        """True if a look at main memory shows that the kept elements are there still; else False."""
        turn = self._turns[self._steps % len(self._turns)]
        return not turn.elements and self._kept_on_host[0] == turn.host.read(turn.addresses_now())

    @property
    def are_on_host(self) -> bool:
        """True if all kept elements are in main memory, so that to look at them waits for no GPU."""
        return not self._kept

    def changed(self) -> list[str]:
        """Names of tensors that have another element now, or that were moved alone."""
        on_host = self._kept_elements_on_host()
        known = {place for group, _ in self._kept for place, _ in group} | on_host.keys()
        differ = {place for group, kept in self._kept for place in self._differing(group, kept)}
        differ |= {place for place, before in on_host.items()
                   if element_bytes(self._tensors[place]) != before}
        moved = {place for turn in self._turns
                 for place, then, now in zip(turn.places, turn.addresses, turn.addresses_now())
                 if then != now}
        if len(moved) < len(self._tensors) and not self._moves:  # else all moved, as by model.cpu()
            differ |= moved - known
        return [self._names[place] for place in sorted(differ)]

    def _kept_elements_on_host(self) -> dict[int, bytes]:
        """The kept elements in main memory, by the places of their tensors."""
        kept, turn = self._kept_on_host
        if turn is None or kept is None:
            return {}
        ends = accumulate(turn.on_host.values(), initial=0)
        return {place: kept[begin:end]
                for place, (begin, end) in zip(turn.on_host, pairwise(ends), strict=True)}

    def _look(self, number: int) -> _Turn:
        """Notes the addresses of a turn; makes the views of elements anew if they have changed."""
        turn = self._turns[number]
        if turn.addresses != list(turn.addresses_now()):
            self._moves = True
            turn = self._turns[number] = self._make_turn(turn.places)
        return turn

    def _differing(self, group: list[tuple[int, torch.Tensor]], kept: torch.Tensor) -> list[int]:
        """The places of tensors whose elements are not the kept ones."""
        before, found, end = bytes(kept.cpu().numpy()), [], 0
        for place, element in group:
            begin, end = end, end + element.numel()
            if element_bytes(self._tensors[place]) != before[begin:end]:
                found.append(place)
        return found

    def _make_turn(self, places: Iterable[int]) -> _Turn:
        distributed, plain = [], []
        for place in places:
            (distributed if isinstance(self._tensors[place], DTensor) else plain).append(place)
        addresses = _addresses_of([self._tensors[place] for place in distributed],
                                  [self._tensors[place] for place in plain])
        turn = _Turn([*distributed, *plain], addresses, list(addresses()), {}, ElementReader([], []), {})
        on_host = []
        for place, address in zip(turn.places, turn.addresses, strict=True):
            if not address:  # its memory is given back for a while
                continue
            element = _element_of(self._tensors[place])
            if element.is_cpu:
                turn.on_host[place] = element.numel()
                on_host.append((element.data_ptr(), element.numel()))
            else:
                turn.elements.setdefault(element.device, []).append((place, element))
        turn.host = ElementReader(turn.addresses, on_host)
        return turn


def _addresses_of(distributed: list[torch.Tensor], plain: list[torch.Tensor]
                  ) -> Callable[[], Iterable[int]]:
    """What returns the addresses of these tensors; the memory of a DTensor is that of one inside."""
    if not distributed:
        return partial(map, _address_of, plain)
    return lambda: map(_address_of, chain(map(_local_tensor_of, distributed), plain))


def _local_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def is_readable(tensor: torch.Tensor) -> bool:
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


def element_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of the element in the middle of a tensor that is readable; waits if it is on a GPU."""
    return bytes(_element_of(tensor).cpu().numpy()) if _address_of(_local_of(tensor)) else b""
