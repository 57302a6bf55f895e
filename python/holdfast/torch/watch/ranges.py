"""The range guard: elements of parameters and slots that no update should have made."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from holdfast import _native
from holdfast.torch.state.piece import Piece
from holdfast.torch.watch.alarms import OUT_OF_RANGE, Alarm
from holdfast.torch.watch.replica_groups import PieceGroup

# Sums of squares and largest absolute values, as optimizers of torch name them.
_NEVER_NEGATIVE = (".exp_avg_sq", ".max_exp_avg_sq", ".square_avg", ".exp_inf", ".sum",
                   ".acc_delta")


@dataclass
class _Range:
    """What is known of one tensor."""

    largest: float = 0.0
    seen: int = 0  # so many elements were looked at; windows come one after the other


class RangeGuard:
    """Looks at the least and the largest element of what a window opens."""

    def __init__(self, factor: float, rank: int) -> None:
        self._factor, self._rank = factor, rank
        self._known: dict[str, _Range] = {}

    def restart(self) -> None:
        """Forgets all ranges: the tensors have other values now."""
        self._known = {}

    def look(self, group: PieceGroup, first: int, last: int, step: int) -> list[Alarm]:
        """The alarms about the parts [first, last) of a group."""
        alarms = []
        for number, begin, values in _floats(group, first, last):
            alarm = self._look_at(group.pieces[number], group.names[number], begin, values, step)
            alarms += [] if alarm is None else [alarm]
        return alarms

    def _look_at(self, piece: Piece, name: str, begin: int, values: torch.Tensor,
                 step: int) -> Alarm | None:
        known = self._known.setdefault(name, _Range())
        low, high = (float(one) for one in torch.aminmax(values))
        largest = max(abs(low), abs(high))  # NaN if one of them is NaN
        bound = self._factor * max(1.0, known.largest)
        expected = ""
        if not math.isfinite(low) or not math.isfinite(high):
            where, expected = (~values.isfinite()).int().argmax(), "a finite number"
        elif low < 0 and piece.kind == "slot" and name.endswith(_NEVER_NEGATIVE):
            where, expected = values.argmin(), "at least 0"
        # Slots are sums of gradients and of their squares, which grow as training goes on.
        elif (piece.kind == "parameter" and known.seen >= piece.tensor.numel()
              and largest > bound):
            where = values.abs().argmax()
            expected = f"at most {bound:.3g}, {self._factor:g} times the largest so far"
        known.seen += values.numel()
        if not expected:
            known.largest = max(known.largest, largest)
            return None
        place = int(where)
        return Alarm(step, self._rank, name, _index_of(piece, begin + place), "", expected,
                     f"{float(values.flatten()[place]):.3g}", OUT_OF_RANGE, guard="range")


def _floats(group: PieceGroup, first: int, last: int) -> Iterator[tuple[int, int, torch.Tensor]]:
    """The elements of the parts [first, last): piece, number of the first element, values.

    Leaves out counters, which grow without a bound. A tensor that is not contiguous is looked at as
    a whole, when its first part is.
    """
    window = group.window
    for number in range(window.piece_of(first), window.piece_of(last - 1) + 1):
        piece, (begin, end) = group.pieces[number], window.parts_of(number)
        tensor = piece.tensor
        if not tensor.dtype.is_floating_point or piece.role == "counter":
            continue
        if tensor.is_contiguous():
            low, high = _elements(window, piece, begin, max(first, begin), min(last, end))
            yield number, low, _comparable(tensor.view(-1)[low:high])
        elif first <= begin:
            yield number, 0, _comparable(tensor)


def _comparable(values: torch.Tensor) -> torch.Tensor:
    # torch compares no numbers of 8 bits.
    return values.float() if values.dtype.itemsize < 2 else values


def _elements(window: _native.FreezeWindow, piece: Piece, begin: int, first: int,
              last: int) -> tuple[int, int]:
    size = piece.tensor.element_size()
    before = window.size(begin, first)
    return before // size, (before + window.size(first, last)) // size


def _index_of(piece: Piece, place: int) -> tuple[int, ...]:
    """The index in the whole tensor of an element of a piece."""
    index: list[int] = []
    for size in reversed(piece.tensor.shape):
        index.insert(0, place % size)
        place //= size
    return tuple(low + k for (low, _), k in zip(piece.box.extents, index, strict=True))
