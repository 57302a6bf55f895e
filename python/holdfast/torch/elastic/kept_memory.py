"""New tensors that take the memory of old ones: what stays on a rank in the same box is not copied.

Nothing is written to that memory before the change is made, so that the old tensors are whole if it fails.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from holdfast.torch.elastic.late_memory import LateMemory, storage_of
from holdfast.torch.state.piece import Piece

Place = tuple[str, tuple[Any, ...]]  # a name, and a box


def place_of(piece: Piece, name: str) -> Place:
    """The name of a tensor and the extents of the box of it that the piece holds."""
    return name, tuple(map(tuple, piece.box.extents))


def take_memory(old: Mapping[Place, torch.Tensor], new: Iterable[tuple[Piece, str]],
                late: LateMemory) -> list[tuple[Piece, str]]:
    """Gives each new tensor the memory of the old one in its place, if it has one; `late` forgets its own.

    FSDP has other views of its parameters, which would not follow; and so may a program of tensors that
    share memory.
    """
    pieces, taken = list(new), []
    users = Counter(storage_of(piece.tensor)._cdata for piece, _ in pieces)
    for piece, name in pieces:
        before, target = old.get(place_of(piece, name)), _own_tensor(piece)
        if before is not None and target is not None and users[storage_of(target)._cdata] == 1 \
                and _are_alike(before, target, late):
            late.forget(target)
            target.data = before
            piece = replace(piece, tensor=target.detach())
        taken.append((piece, name))
    return taken


def _own_tensor(piece: Piece) -> torch.Tensor | None:
    """The tensor that has the memory of the piece; None if others may have views of it."""
    if isinstance(piece.outer, DTensor):
        return piece.outer._local_tensor if piece.kind == "slot" else None
    return piece.outer if piece.kind in ("parameter", "buffer", "slot") else None


def _are_alike(before: torch.Tensor, target: torch.Tensor, late: LateMemory) -> bool:
    """True if each is all of its storage, and both lie in memory in the same way."""
    return (type(before) is torch.Tensor and before.shape == target.shape and before.dtype == target.dtype
            and before.device == target.device and before.stride() == target.stride()
            and before.storage_offset() == target.storage_offset() == 0
            and storage_of(before).nbytes() == late.size_of(target) == before.numel() * before.itemsize)
