"""Replicas that diverged: tensors that ranks were to hold alike, and do not (local SGD, a fault).

A checkpoint would have some of them from one rank and some from another. So each rank saves its
own. For tensors that are cut over ranks, of which no rank holds all, the first ranks that hold
the parts save them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

from holdfast import _native
from holdfast.torch.state.piece import Piece
from holdfast.torch.values.dotted_names import name_a_few

BUFFER_SEALS = "seals of buffers"  # a key in the objects of each rank

# (name, a rank, a rank whose values differ from it, whether ranks hold the whole tensor,
# whether no rank before this one holds the same part)
Divergence = tuple[str, int, int, bool, bool]


class DivergedReplicas:
    """The names of the tensors whose replicas are known to have diverged."""

    def __init__(self) -> None:
        self.own: set[str] = set()  # each rank saves its own
        self.first: set[str] = set()  # the first rank with a part saves it
        self.elsewhere: set[str] = set()  # those of `first` that this rank does not save

    @classmethod
    def of(cls, found: _native.SavedStep) -> Self:
        """The replicas that had diverged in a checkpoint.

        `elsewhere` is empty: the next save finds out again which rank is the first.
        """
        diverged = cls()
        saved = found.objects.get("parted") or {}
        diverged.own = set(saved.get("own", ()))
        diverged.first = set(saved.get("first", ()))
        return diverged

    def add(self, found: Iterable[Divergence]) -> None:
        """Adds tensors whose replicas the engine has seen to differ."""
        for name, _, _, is_whole, is_first in found:
            (self.own if is_whole else self.first).add(name)
            if not is_whole and not is_first:
                self.elsewhere.add(name)

    def state(self) -> dict[str, list[str]]:
        """What a checkpoint keeps of it; the same on all ranks."""
        return {"own": sorted(self.own), "first": sorted(self.first)}

    def sentences(self, ranks: int, world: int) -> list[str]:
        """What is not as it was when `ranks` ranks saved, now that there are `world` ranks."""
        lines = []
        if self.own and ranks != world:
            lines.append(f"{_some(self.own)}: each of {ranks} ranks saved its own, and now there are "
                         f"{world} ranks: rank r takes that of rank r modulo {ranks}")
        if self.first:
            lines.append(f"{_some(self.first)}: ranks held different copies of the same part when it was "
                         "saved, and now all of them get the copy of the first such rank")
        return lines


def divergence_warning(found: list[Any]) -> str:
    """One sentence about tensors whose replicas differ."""
    name, rank, other, is_whole, _ = found[0]
    more = f" ({len(found) - 1} more tensors differ)" if len(found) > 1 else ""
    saved = "each rank's own are saved" if is_whole else "those of the first ranks are saved"
    return (f"{name}: rank {rank} and rank {other} hold it with different values{more}: {saved} "
            "from now on; if they are parts of one tensor, give a rule that says how it is cut: "
            f'layout=holdfast.Layout(rules={{"{name}": ...}})')


def _some(names: set[str]) -> str:
    first = min(names)
    return first if len(names) == 1 else f"{first} and {len(names) - 1} more"


def read_by_averages(pieces: Sequence[Piece], averaged: Sequence[Piece]) -> list[Piece]:
    """The buffers that DDP broadcasts and that have the same attribute name as one of an average.

    DDP broadcasts the buffers of a model in its next forward pass. An average (`ema=`) that reads them
    before that has other values on each rank, perhaps only from some step on. Running statistics are
    each rank's own (buffer_copies.py). The others are saved once, because most are masks and tables,
    which nothing changes. So each rank saves their seals, too, and a resume says which ones differed. So does
    a recovery from other ranks, by the seals in the record of the lost one (recover/).
    """
    attributes = {piece.name.rpartition(".")[2] for piece in averaged}
    return [piece for piece in pieces if piece.kind == "buffer" and piece.copies == "first"
            and piece.name.rpartition(".")[2] in attributes]


def differing_buffers(ranks: Sequence[Mapping[str, Any]], own: Collection[str]) -> list[str]:
    """A sentence about buffers that the ranks that saved held with different values, if any.

    `ranks` are the objects of each rank, and each rank has saved its own of those in `own`.
    """
    seals: dict[str, set[str]] = {}
    for saved in ranks:
        for name, seal in saved.get(BUFFER_SEALS, {}).items():
            seals.setdefault(name, set()).add(seal)
    names = [name for name, found in seals.items() if len(found) > 1 and name not in own]
    if not names:
        return []
    return [f"{name_a_few(names)}: the {len(ranks)} ranks that saved had different values, and those "
            "of one of them are taken"]
