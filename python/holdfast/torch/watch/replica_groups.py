"""Which ranks hold the same pieces.

A piece is a box of a tensor. All pieces that the same ranks hold form a group, and the ranks of a
group compare its pieces with each other. So parameters that all ranks hold are compared although
each rank has other slots beside them (ZeRO), and a shard is compared by the ranks that hold the
same shard (HSDP). Every rank knows the groups of all ranks and gives them the same numbers.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from holdfast import _native
from holdfast.torch.state.capture import current_stream
from holdfast.torch.state.piece import Piece


class Part(NamedTuple):
    """Up to 64 KiB of a piece. Ranks of a group number its parts alike."""

    group: int
    number: int

    def __str__(self) -> str:
        return f"{self.group}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The reverse of str()."""
        return cls(*map(int, text.split(":")))


@dataclass(frozen=True)
class Held:
    """The pieces that this rank watches."""

    pieces: list[Piece]
    names: list[str]  # the names in a checkpoint
    keys: list[str]  # equal on two ranks for the same box of the same tensor
    listed: str  # a digest of the keys

    @classmethod
    def of(cls, chosen: Sequence[tuple[Piece, str]], rank: int) -> Self:
        """What a rank holds."""
        keys = [_key_of(piece, name, rank) for piece, name in chosen]
        return cls([piece for piece, _ in chosen], [name for _, name in chosen], keys,
                   digest_of(*keys))

    @property
    def bytes(self) -> int:
        """The size of all pieces."""
        return sum(piece.tensor.nbytes for piece in self.pieces)

    def is_same(self, chosen: Sequence[tuple[Piece, str]]) -> bool:
        """True if these are the same tensors under the same names."""
        return len(chosen) == len(self.pieces) and all(
            piece is mine and name == my_name for (piece, name), mine, my_name
            in zip(chosen, self.pieces, self.names, strict=True))


def _key_of(piece: Piece, name: str, rank: int) -> str:
    # For some tensors only the values of the first rank count; those of the others may differ.
    alone = "" if piece.copies == "equal" else f"rank {rank}"
    return digest_of(name, str(piece.shape), str(piece.box), str(piece.tensor.dtype), alone)


def digest_of(*texts: str) -> str:
    """A short digest of these texts, in this order."""
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=12).hexdigest()


@dataclass(frozen=True)
class Grouping:
    """The groups of all ranks."""

    digest: str = ""  # equal on all ranks; "" if nothing is known yet
    number_of: dict[str, int] = field(default_factory=dict)  # the group of a piece, by its key
    ranks: list[tuple[int, ...]] = field(default_factory=list)  # of each group
    largest: int = 0  # bytes that one rank holds

    @classmethod
    def of(cls, keys: Sequence[Sequence[str]], digest: str, largest: int) -> Self:
        """The groups of ranks that hold pieces with these keys, by rank."""
        holders: dict[str, list[int]] = {}
        for rank, own in enumerate(keys):
            for key in own:
                holders.setdefault(key, []).append(rank)
        ranks = sorted(set(map(tuple, holders.values())))
        numbers = {one: number for number, one in enumerate(ranks)}
        return cls(digest, {key: numbers[tuple(one)] for key, one in holders.items()}, ranks,
                   largest)

    @classmethod
    def alone(cls, rank: int, world: int, keys: Sequence[str], digest: str, largest: int) -> Self:
        """The groups of ranks that compare nothing: each rank is a group."""
        return cls(digest, dict.fromkeys(keys, rank), [(one,) for one in range(world)], largest)

    def count_windows(self, window_bytes: int) -> int:
        """In how many windows of that size the rank that holds most looks at all it has."""
        return max(1, -(-self.largest // window_bytes))


def digest_of_lists(listed: Sequence[str], largest: int, compares: bool) -> str:
    """The digest of the groups of ranks that hold what these lists say."""
    return digest_of(*listed, str(largest), str(compares))


@dataclass
class PieceGroup:
    """The pieces of a group on this rank, which cuts them into windows."""

    number: int
    ranks: tuple[int, ...]
    pieces: list[Piece]
    names: list[str]
    window: _native.FreezeWindow
    starts: list[int] = field(default_factory=list)  # the first part of each window, and the end

    def __post_init__(self) -> None:
        self.is_on_device = any(piece.tensor.device.type != "cpu" for piece in self.pieces)

    def wait(self) -> None:
        """Waits for training's work on a GPU, so that tensors are read as they are after it."""
        if self.is_on_device:
            self.window.wait_for(current_stream())

    def name_of(self, part: int) -> str:
        """The name of the tensor that a part belongs to."""
        return self.names[self.window.piece_of(part)]
