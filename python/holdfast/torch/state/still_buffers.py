"""Large buffers that nothing changes, as masks and tables are: records leave their bytes out.

Buffers that DDP broadcasts may differ between two broadcasts, so that each rank's own are in its record
(peer_step.py), and a mask of 100 MB would travel with every update. Ranks compare the seals of large buffers
at the first gate of a generation. As long as one has the bits that it had on another rank then, records have
its seal only. The process that replaces the rank gets the bits from there, and compares the seal.

Seals are always taken anew: DDP writes to buffers without counting it (Tensor._version).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from holdfast import _native
from holdfast.torch.state.piece import Piece

_LARGE = 1 << 20  # bytes; a smaller one costs less to send than to think about

Named = Sequence[tuple[Piece, str]]


class StillBuffers:
    """Knows which of this rank's buffers another rank has, too."""

    def __init__(self, describe: Callable[[Piece, str], _native.Piece]) -> None:
        self._describe = describe
        self._common: dict[str, str] = {}  # the seals that another rank has told, too

    def seals(self, buffers: Named) -> dict[str, str]:
        """The seals of the large ones of which the first rank's values count, by their names."""
        large = [(piece, name) for piece, name in buffers
                 if piece.copies == "first" and piece.tensor.nbytes > _LARGE]
        for device in {piece.tensor.device for piece, _ in large if piece.tensor.is_cuda}:
            torch.cuda.synchronize(device)
        sealed = _native.Pieces([self._describe(piece, name) for piece, name in large]).seals() if large else []
        return {name: seal for (_, name), (_, seal) in zip(large, sealed, strict=True)}

    def compare(self, mine: Mapping[str, str], told: Sequence[Mapping[str, str]]) -> None:
        """Takes the seals that all ranks have told, this one too."""
        self._common = {name: seal for name, seal in mine.items()
                        if sum(one.get(name) == seal for one in told) > 1}

    def take_over(self, record: Mapping[str, Any]) -> None:
        """What a replacement knows instead: what the record of the lost rank has left out."""
        there = {name for name, *_ in record["tensors"]}
        self._common = {name: seal for name, seal in record["seals"].items() if name not in there}

    def are_still(self, seals: Mapping[str, str]) -> set[str]:
        """The names of those that another rank has, too."""
        return {name for name, seal in seals.items() if self._common.get(name) == seal}
