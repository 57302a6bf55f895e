"""Tensors that were taken for the same on several ranks, and are not (local SGD, a fault).

A checkpoint would have some of them from one rank and some from another. So each rank saves
its own; of tensors that are cut, of which no rank has all, the first ranks that hold the
parts save them.
"""

from collections.abc import Iterable
from typing import Any, Self

from holdfast import _native

# (name, a rank, one that differs from it, whether ranks hold all of it, whether no rank
# before this one holds its part)
Differing = tuple[str, int, int, bool, bool]


class Parted:
    """The tensors of this process of which that is known, by name."""

    def __init__(self) -> None:
        self.own: set[str] = set()  # each rank saves its own
        self.first: set[str] = set()  # the first rank with a part saves it
        self.elsewhere: set[str] = set()  # those of them that this rank does not save

    @classmethod
    def of(cls, found: _native.Looked) -> Self:
        """As the checkpoint has it; who is first is found again where it is saved."""
        parted = cls()
        saved = found.objects.get("parted") or {}
        parted.own = set(saved.get("own", ()))
        parted.first = set(saved.get("first", ()))
        return parted

    def add(self, found: Iterable[Differing]) -> None:
        """Tensors that differ, as the engine has found them."""
        for name, _, _, is_whole, is_first in found:
            (self.own if is_whole else self.first).add(name)
            if not is_whole and not is_first:
                self.elsewhere.add(name)

    def state(self) -> dict[str, list[str]]:
        """For the checkpoint; the same on all ranks."""
        return {"own": sorted(self.own), "first": sorted(self.first)}

    def sentences(self, ranks: int, world: int) -> list[str]:
        """What is not as it was, in a checkpoint of so many ranks and a world of so many."""
        lines = []
        if self.own and ranks != world:
            lines.append(f"{_some(self.own)}: each of {ranks} ranks had its own, and there are "
                         f"{world}: rank r has that of rank r modulo {ranks}")
        if self.first:
            lines.append(f"{_some(self.first)}: copies of the parts differed, and all ranks have "
                         "those of the first ranks that held them")
        return lines


def warning(found: list[Any]) -> str:
    """One sentence about tensors that differ."""
    name, rank, other, is_whole, _ = found[0]
    more = f" ({len(found) - 1} more tensors differ)" if len(found) > 1 else ""
    saved = "each rank's own are saved" if is_whole else "those of the first ranks are saved"
    return (f"{name}: rank {rank} and rank {other} hold it with different values{more}: {saved} "
            "from now on; if they are parts of one tensor, give spec= that says how it is cut")


def _some(names: set[str]) -> str:
    first = min(names)
    return first if len(names) == 1 else f"{first} and {len(names) - 1} more"
