"""The tensors of one save, described to the engine once for as long as they stay the same.

Describing a tensor to the engine takes some 20 µs. So a save passes what was described at the
last save again, and describes anew only tensors that replaced others. For replaced tensors the
engine plans its copies anew, for all tensors. To avoid that plan, small tensors that save()
copies at once anyway (buffers, counters) and that were replaced before are first copied into
memory of our own, whose address stays the same: some modules and optimizers assign new tensors
in every step.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist

from holdfast import _native
from holdfast.arrays import describe_one
from holdfast.torch.state.change_detection import TensorVersions, positions_where
from holdfast.torch.state.diverged_replicas import DivergedReplicas, Divergence
from holdfast.torch.state.piece import Piece
from holdfast.torch.values.dotted_names import own_name


_SMALL = 1 << 20  # bytes; a tensor of at most this size may be copied twice in one save


@dataclass
class Captured:
    """What one save holds, before the engine begins to copy it."""

    pieces: _native.Pieces
    owners: list[torch.Tensor]  # kept alive until their bytes are copied
    watched: TensorVersions  # the tensors that are copied in the background
    objects: dict[str, Any] = field(default_factory=dict)
    rank_objects: dict[str, Any] = field(default_factory=dict)
    averaged: list[Piece] = field(default_factory=list)  # buffers of averages
    versions: list[int] | None = None  # those of the watched tensors at the call of watch()

    def watch(self) -> None:
        """From now on, changed() reports tensors that are written to."""
        self.versions = self.watched.now()

    def changed(self) -> list[str]:
        """Names of tensors written to since watch(), as far as torch counts writes."""
        return [] if self.versions is None else self.watched.changed(self.versions)


@dataclass
class _StableCopy:
    """Memory of our own, and the tensor whose values the next save copies into it."""

    memory: torch.Tensor
    live: torch.Tensor

    def fits(self, tensor: torch.Tensor) -> bool:
        """True if the memory can take the values of that tensor."""
        own = self.memory
        return (own.shape, own.dtype, own.device) == (tensor.shape, tensor.dtype, tensor.device)


@dataclass
class _Described:
    """The pieces of the model and its optimizers, and how they were described to the engine."""

    pieces: list[Piece]
    places: dict[int, int]  # index of a piece -> index in `native`, if this rank saves it
    native: _native.Pieces
    watched: TensorVersions
    owners: list[torch.Tensor]
    copies: dict[int, _StableCopy] = field(default_factory=dict)  # by index of the piece

    def changed(self, pieces: list[Piece]) -> list[int] | None:
        """The indices of pieces that were replaced; None if their names or number changed."""
        if len(pieces) != len(self.pieces):
            return None
        found = positions_where(operator.is_not, pieces, self.pieces)
        same_names = all(pieces[k].name == self.pieces[k].name for k in found)
        return found if same_names else None


@dataclass
class _WithObjects:
    """The tensors of the model and its optimizers, and those of objects beside them."""

    state: _native.Pieces
    pieces: list[Piece]  # the tensors of objects
    described: list[_native.Piece]  # the same, described to the engine
    all: _native.Pieces

    def has(self, pieces: list[Piece]) -> bool:
        """True if these are the very pieces of objects that were described."""
        return len(pieces) == len(self.pieces) and all(map(operator.is_, pieces, self.pieces))


class TensorCapture:
    """The tensors that this rank saves."""

    def __init__(self, find_pieces: Callable[[], list[Piece]],
                 group_of: Callable[[str], dist.ProcessGroup | None], rank: int,
                 world: int) -> None:
        """`find_pieces` returns the pieces as they are now; the same list if nothing changed.

        `group_of` returns the process group of the DDP module around a buffer, if there is one.
        """
        self._find_pieces = find_pieces
        self._group_of = group_of
        self._rank, self._world = rank, world
        self._at_once: set[str] = set()
        self.diverged = DivergedReplicas()
        self._described: _Described | None = None
        self._with_objects: _WithObjects | None = None

    def capture(self) -> Captured:
        """The model and its optimizers as they are now. Nothing large is copied."""
        pieces = self._find_pieces()
        if self._described is None or self._described.pieces is not pieces:
            self._described = self._describe_replaced(pieces) or self._describe_all(pieces)
        for copy in self._described.copies.values():
            copy.memory.copy_(copy.live)
        return Captured(self._described.native, self._described.owners, self._described.watched)

    def add(self, captured: Captured, others: list[tuple[Piece, bool]]) -> None:
        """Adds the tensors of objects, which save() copies at once, as they may change any time.

        `others` are pieces, and whether each is this rank's own.
        """
        pieces = [piece for piece, _ in others]
        known = self._with_objects
        if known is None or not known.has(pieces):
            described = [self.describe(piece, self.object_name(piece, is_own), at_once=True)
                         for piece, is_own in others]
            known = _WithObjects(captured.pieces, pieces, described,
                                 captured.pieces.plus(described))
        elif known.state is not captured.pieces:
            known = _WithObjects(captured.pieces, pieces, known.described,
                                 captured.pieces.plus(known.described))
        self._with_objects = known
        captured.pieces = known.all
        captured.owners = captured.owners + [piece.tensor for piece in pieces]

    def describe(self, piece: Piece, name: str, at_once: bool = False) -> _native.Piece:
        """Describes one piece to the engine, under that name."""
        aliases = piece.aliases
        if name != piece.name and name == own_name(piece.name, self._rank):
            aliases = tuple(own_name(alias, self._rank) for alias in aliases)
        array = describe_one(name, piece.tensor, aliases)
        return _native.Piece(array, list(piece.shape), piece.box,
                             at_once or piece.at_once or name in self._at_once, piece.role,
                             piece.of)

    def copy_at_once(self, names: Iterable[str], not_more: Iterable[str]) -> None:
        """From now on, save() itself copies these tensors, before it returns; not_more: no longer."""
        now = (self._at_once | set(names)) - set(not_more)
        if now != self._at_once:
            self._at_once = now
            self.forget()

    def mark_diverged(self, found: Iterable[Divergence]) -> None:
        """From now on, each rank saves its own of these tensors, which were taken for equal."""
        self.diverged.add(found)
        self.forget()

    def forget(self) -> None:
        """Lets go of all tensors."""
        self._described = self._with_objects = None

    def forget_objects(self) -> None:
        """Lets go of the tensors of objects."""
        self._with_objects = None

    def saves(self, piece: Piece) -> bool:
        """False if another rank saves this piece for all."""
        if piece.name in self.diverged.elsewhere:
            return False
        if piece.copies != "first":
            return True
        group = self._group_of(piece.name)
        return (dist.get_rank(group) if group is not None else self._rank) == 0

    def ranks_with(self, piece: Piece) -> list[int]:
        """The ranks that have a buffer of which the first one's values count."""
        group = self._group_of(piece.name)
        return dist.get_process_group_ranks(group) if group is not None else list(range(self._world))

    def saved_name(self, piece: Piece) -> str:
        """The name that the piece has in a checkpoint."""
        return own_name(piece.name, self._rank) if self._is_own(piece) else piece.name

    def seals_of(self, pieces: Iterable[Piece]) -> dict[str, str]:
        """The seals, as they are now, of those pieces of which one rank's values are saved, by name."""
        common = [piece for piece in pieces if piece.tensor.numel() > 0 and self.saved_name(piece) == piece.name]
        for device in {piece.tensor.device for piece in common if piece.tensor.is_cuda}:
            torch.cuda.synchronize(device)
        return dict(_native.Pieces([self.describe(piece, piece.name) for piece in common]).seals()) if common else {}

    def object_name(self, piece: Piece, is_own: bool) -> str:
        """The name that a tensor of an object has in a checkpoint."""
        own = is_own or self._is_own(piece)
        return own_name(piece.name, self._rank) if own and self._world > 1 else piece.name

    def _is_own(self, piece: Piece) -> bool:
        return piece.copies == "own" or piece.name in self.diverged.own

    def _describe_all(self, pieces: list[Piece]) -> _Described:
        mine = [k for k, piece in enumerate(pieces) if self.saves(piece)]
        watched = TensorVersions({self.saved_name(p): p.outer for p in (pieces[k] for k in mine)
                                  if p.outer is not None and not self._copied_at_once(p)})
        described = [self.describe(pieces[k], self.saved_name(pieces[k])) for k in mine]
        return _Described(pieces, {index: k for k, index in enumerate(mine)},
                          _native.Pieces(described), watched, [pieces[k].tensor for k in mine])

    def _describe_replaced(self, pieces: list[Piece]) -> _Described | None:
        """Describes only the replaced pieces anew; None if more than that has changed."""
        known, found = self._described, self._described and self._described.changed(pieces)
        if known is None or found is None:
            return None
        for k in found:
            if self.saves(pieces[k]) != (k in known.places) or (
                    self._copied_at_once(pieces[k]) != self._copied_at_once(known.pieces[k])):
                return None
        copies = dict(known.copies)
        moved = [k for k in found
                 if k in known.places and not self._copies_into_same_memory(k, pieces[k], copies)]
        if not moved:
            return replace(known, pieces=pieces, copies=copies)
        tensors = {k: copies[k].memory if k in copies else pieces[k].tensor for k in moved}
        watched = known.watched.replaced({
            self.saved_name(pieces[k]): pieces[k].outer for k in moved})
        native, owners = self._with_replaced(known, pieces, tensors)
        return _Described(pieces, known.places, native, watched, owners, copies)

    def _with_replaced(self, known: _Described, pieces: list[Piece],
                       tensors: Mapping[int, torch.Tensor]
                       ) -> tuple[_native.Pieces, list[torch.Tensor]]:
        """What the engine takes, with these tensors in place of the old ones.

        Most of them differ in their address alone, which costs less to tell the engine.
        """
        owners = list(known.owners)
        addresses: dict[int, int] = {}
        others: dict[int, _native.Piece] = {}
        for k, tensor in tensors.items():
            place = known.places[k]
            if _are_alike(tensor, owners[place]):
                addresses[place] = tensor.data_ptr()
            else:
                others[place] = self.describe(replace(pieces[k], tensor=tensor),
                                              self.saved_name(pieces[k]))
            owners[place] = tensor
        native = known.native
        if addresses:
            native = native.moved(list(addresses), list(addresses.values()))
        if others:
            native = native.replaced(list(others), list(others.values()))
        return native, owners

    def _copies_into_same_memory(self, index: int, piece: Piece,
                                 copies: dict[int, _StableCopy]) -> bool:
        """True if the engine need not know that the piece was replaced.

        A small piece that was replaced for the first time gets memory of our own, so that the
        next replacement need not be told to the engine.
        """
        known = copies.pop(index, None)
        if not self._copied_at_once(piece) or piece.tensor.nbytes > _SMALL:
            return False
        if known is not None and known.fits(piece.tensor):
            copies[index] = _StableCopy(known.memory, piece.tensor)
            return True
        memory = torch.empty_like(piece.tensor, memory_format=torch.contiguous_format)
        copies[index] = _StableCopy(memory, piece.tensor)
        return False

    def _copied_at_once(self, piece: Piece) -> bool:
        return piece.at_once or self.saved_name(piece) in self._at_once


def _are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if the tensors differ in nothing but their values and their address."""
    return (one.shape == other.shape and one.stride() == other.stride()
            and one.dtype == other.dtype and one.device == other.device and one.numel() > 0)


def current_stream() -> int:
    """The raw handle of the current CUDA stream; 0 if CUDA is not in use.

    Avoids torch.cuda.current_stream(), which takes 20 µs.
    """
    if not torch.cuda.is_initialized():
        return 0
    return torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
