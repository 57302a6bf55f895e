"""The tensors of one save, as the engine takes them, made once for as long as they stay the same.

To describe a tensor to the engine takes some 20 µs: what was described at the last save is
passed again, and where tensors were put in place of others, only those are described anew.
The engine then plans its copies anew, for all tensors. So small tensors that are copied
inside save() anyway (buffers, counters), and that were put in place of others once, are
copied into memory of our own first, which stays where it is: some modules and optimizers
assign new ones in every step.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist

from holdfast import _native
from holdfast.arrays import describe_one
from holdfast.torch.state.change_detection import Versions, places_of
from holdfast.torch.state.diverged_replicas import Differing, Parted
from holdfast.torch.state.piece import Piece
from holdfast.torch.state.tensor_state import State
from holdfast.torch.values.dotted_names import own_name


@dataclass
class Captured:
    """One save, before it begins."""

    held: _native.Pieces
    owners: list[torch.Tensor]  # kept alive until their bytes are copied
    watched: Versions  # of what is copied in the background
    objects: dict[str, Any] = field(default_factory=dict)
    rank_objects: dict[str, Any] = field(default_factory=dict)
    versions: list[int] | None = None  # of what is watched

    def watch(self) -> None:
        """From now on it is noticed if tensors are written to."""
        self.versions = self.watched.now()

    def changed(self) -> list[str]:
        """Names of tensors that were written to since, as far as their versions tell."""
        return [] if self.versions is None else self.watched.changed(self.versions)


_SMALL = 1 << 20  # bytes of a tensor that may be copied twice


@dataclass
class _Room:
    """Memory of our own, and the tensor whose values it has in the next save."""

    memory: torch.Tensor
    live: torch.Tensor

    def fits(self, tensor: torch.Tensor) -> bool:
        """True if it can have the values of that tensor."""
        own = self.memory
        return (own.shape, own.dtype, own.device) == (tensor.shape, tensor.dtype, tensor.device)


@dataclass
class _Made:
    """What was made of the pieces of the model and its optimizers."""

    pieces: list[Piece]
    places: dict[int, int]  # where a piece is in what follows, if it is saved by this rank
    held: _native.Pieces
    watched: Versions
    owners: list[torch.Tensor]
    rooms: dict[int, _Room] = field(default_factory=dict)  # by piece

    def changed(self, pieces: list[Piece]) -> list[int] | None:
        """Where pieces are others by the same names; None if there is another number of them."""
        if len(pieces) != len(self.pieces):
            return None
        found = places_of(operator.is_not, pieces, self.pieces)
        same_names = all(pieces[k].name == self.pieces[k].name for k in found)
        return found if same_names else None


@dataclass
class _Joined:
    """Tensors of the model and its optimizers, and of objects with them."""

    state: _native.Pieces
    pieces: list[Piece]
    more: list[_native.HeldPiece]  # of these
    all: _native.Pieces

    def is_of(self, pieces: list[Piece]) -> bool:
        """True if it has the very same of objects."""
        return len(pieces) == len(self.pieces) and all(map(operator.is_, pieces, self.pieces))


class HeldState:
    """What this rank saves of the state."""

    def __init__(self, state: State, rank: int) -> None:
        self._state = state
        self._rank = rank
        self._at_once: set[str] = set()
        self.parted = Parted()
        self._made: _Made | None = None
        self._joined: _Joined | None = None

    def capture(self) -> Captured:
        """The model and its optimizers as they are now; nothing is copied."""
        pieces = self._state.pieces()
        if self._made is None or self._made.pieces is not pieces:
            self._made = self._renew(pieces) or self._make(pieces)
        for room in self._made.rooms.values():
            room.memory.copy_(room.live)
        return Captured(self._made.held, self._made.owners, self._made.watched)

    def add(self, captured: Captured, others: list[tuple[Piece, bool]],
            name_of: Callable[[Piece, bool], str]) -> None:
        """Adds tensors of objects, which may change at any time; and whether they are own."""
        pieces = [piece for piece, _ in others]
        joined = self._joined
        if joined is None or not joined.is_of(pieces):
            more = [self.hold(piece, name_of(piece, is_own), at_once=True)
                    for piece, is_own in others]
            joined = _Joined(captured.held, pieces, more, captured.held.plus(more))
        elif joined.state is not captured.held:
            joined = _Joined(captured.held, pieces, joined.more, captured.held.plus(joined.more))
        self._joined = joined
        captured.held = joined.all
        captured.owners = captured.owners + [piece.tensor for piece in pieces]

    def hold(self, piece: Piece, name: str, at_once: bool = False) -> _native.HeldPiece:
        """One piece by that name."""
        aliases = piece.aliases
        if name != piece.name and name == own_name(piece.name, self._rank):
            aliases = tuple(own_name(alias, self._rank) for alias in aliases)
        array = describe_one(name, piece.tensor, aliases)
        return _native.HeldPiece(array, list(piece.shape), piece.box,
                                 at_once or piece.at_once or name in self._at_once)

    def copy_at_once(self, names: Iterable[str]) -> None:
        """These are copied inside save() from now on."""
        self._at_once |= set(names)
        self.forget()

    def part(self, found: Iterable[Differing]) -> None:
        """Ranks hold these with different values, which were taken for equal ones."""
        self.parted.add(found)
        self.forget()

    def forget(self) -> None:
        """Lets go of all tensors."""
        self._made = self._joined = None

    def forget_objects(self) -> None:
        """Lets go of the tensors of objects."""
        self._joined = None

    def saves(self, piece: Piece) -> bool:
        """False if another rank's is the one that counts."""
        if piece.name in self.parted.elsewhere:
            return False
        if piece.copies != "first":
            return True
        entry = self._state.entry(piece.name)
        group = entry.ddp.process_group if entry is not None and entry.ddp is not None else None
        return (dist.get_rank(group) if group is not None else self._rank) == 0

    def saved_name(self, piece: Piece) -> str:
        """The name in a checkpoint."""
        own = piece.copies == "own" or piece.name in self.parted.own
        return own_name(piece.name, self._rank) if own else piece.name

    def _make(self, pieces: list[Piece]) -> _Made:
        mine = [k for k, piece in enumerate(pieces) if self.saves(piece)]
        watched = Versions({self.saved_name(p): p.outer for p in (pieces[k] for k in mine)
                            if p.outer is not None and not self._copied_at_once(p)})
        held = [self.hold(pieces[k], self.saved_name(pieces[k])) for k in mine]
        return _Made(pieces, {place: k for k, place in enumerate(mine)}, _native.Pieces(held),
                     watched, [pieces[k].tensor for k in mine])

    def _renew(self, pieces: list[Piece]) -> _Made | None:
        """What was made before, with the pieces that are others now; None if more has changed."""
        known, found = self._made, self._made and self._made.changed(pieces)
        if known is None or found is None:
            return None
        for k in found:
            if self.saves(pieces[k]) != (k in known.places) or (
                    self._copied_at_once(pieces[k]) != self._copied_at_once(known.pieces[k])):
                return None
        rooms = dict(known.rooms)
        moved = [k for k in found if k in known.places and not self._keep(k, pieces[k], rooms)]
        if not moved:
            return replace(known, pieces=pieces, rooms=rooms)
        tensors = {k: rooms[k].memory if k in rooms else pieces[k].tensor for k in moved}
        watched = known.watched.replaced({
            self.saved_name(pieces[k]): pieces[k].outer for k in moved})
        held, owners = self._replaced(known, pieces, tensors)
        return _Made(pieces, known.places, held, watched, owners, rooms)

    def _replaced(self, known: _Made, pieces: list[Piece], tensors: Mapping[int, torch.Tensor]
                  ) -> tuple[_native.Pieces, list[torch.Tensor]]:
        """What the engine takes, with these tensors; most lie elsewhere and are alike else."""
        owners = list(known.owners)
        alike: dict[int, int] = {}
        others: dict[int, _native.HeldPiece] = {}
        for k, tensor in tensors.items():
            place = known.places[k]
            if _are_alike(tensor, owners[place]):
                alike[place] = tensor.data_ptr()
            else:
                others[place] = self.hold(replace(pieces[k], tensor=tensor),
                                          self.saved_name(pieces[k]))
            owners[place] = tensor
        held = known.held.moved(list(alike), list(alike.values())) if alike else known.held
        return held.replaced(list(others), list(others.values())) if others else held, owners

    def _keep(self, place: int, piece: Piece, rooms: dict[int, _Room]) -> bool:
        """True if the engine need not know that the piece is another; makes room for the next."""
        room = rooms.pop(place, None)
        if not self._copied_at_once(piece) or piece.tensor.nbytes > _SMALL:
            return False
        if room is not None and room.fits(piece.tensor):
            rooms[place] = _Room(room.memory, piece.tensor)
            return True
        memory = torch.empty_like(piece.tensor, memory_format=torch.contiguous_format)
        rooms[place] = _Room(memory, piece.tensor)
        return False

    def _copied_at_once(self, piece: Piece) -> bool:
        return piece.at_once or self.saved_name(piece) in self._at_once


def _are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if they differ in nothing but their values and where these lie."""
    return (one.shape == other.shape and one.stride() == other.stride()
            and one.dtype == other.dtype and one.device == other.device and one.numel() > 0)
