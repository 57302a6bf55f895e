"""Buffers of averages, and of the models that they read, of which only one rank's values are saved.

DDP broadcasts the buffers of a model in its next forward pass. An average (`ema=`) that reads them
before that has other values on each rank, perhaps only from some step on. Running statistics are
each rank's own (buffer_copies.py). The others are saved once, because most are masks and tables,
which nothing changes. So each rank saves their seals, too, and a resume says which ones differed. So does a recovery from
other ranks, by the seals in the record of the lost one (recover/).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from holdfast import _native
from holdfast.torch.state.capture import TensorCapture
from holdfast.torch.state.piece import Piece
from holdfast.torch.values.dotted_names import name_a_few

KEY = "seals of buffers"  # in the objects of each rank


def read_by_averages(pieces: Sequence[Piece], averaged: Sequence[Piece]) -> list[Piece]:
    """The buffers that DDP broadcasts and that have the same attribute name as one of an average."""
    attributes = {piece.name.rpartition(".")[2] for piece in averaged}
    return [piece for piece in pieces if piece.kind == "buffer" and piece.copies == "first"
            and piece.name.rpartition(".")[2] in attributes]


def seals_of(pieces: Sequence[Piece], capture: TensorCapture) -> dict[str, str]:
    """The seals, as they are now, of those pieces of which one rank's values are saved, by name."""
    common = [piece for piece in pieces
              if piece.tensor.numel() > 0 and capture.saved_name(piece) == piece.name]
    if not common:
        return {}
    for device in {piece.tensor.device for piece in common if piece.tensor.is_cuda}:
        torch.cuda.synchronize(device)
    return dict(_native.Pieces([capture.describe(piece, piece.name) for piece in common]).seals())


def differing(ranks: Sequence[Mapping[str, Any]], own: Collection[str]) -> list[str]:
    """A sentence about buffers that the ranks that saved held with different values, if any.

    `ranks` are the objects of each rank, and each rank has saved its own of those in `own`.
    """
    seals: dict[str, set[str]] = {}
    for saved in ranks:
        for name, seal in saved.get(KEY, {}).items():
            seals.setdefault(name, set()).add(seal)
    names = [name for name, found in seals.items() if len(found) > 1 and name not in own]
    if not names:
        return []
    return [f"{name_a_few(names)}: the {len(ranks)} ranks that saved had different values, and those "
            "of one of them are taken"]
