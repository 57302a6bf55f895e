"""The state of this process as other ranks need it: what ranks hold alike, and what only this one has.

With the one, the process that replaces a lost rank is filled. The other is the lost rank's record,
which another rank keeps (recover/).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.torch.data.loaders import Loaders
from holdfast.torch.state.capture import TensorCapture
from holdfast.torch.state.diverged_replicas import BUFFER_SEALS
from holdfast.torch.state.gradients import KEY as GRADIENTS, Gradients
from holdfast.torch.state.live_buffers import LiveBuffers
from holdfast.torch.state.peer_step import Record, describe, is_of_record
from holdfast.torch.state.piece import Piece
from holdfast.torch.state.stateful import Stateful
from holdfast.torch.state.stateful_objects import StatefulObjects
from holdfast.torch.state.still_buffers import StillBuffers
from holdfast.torch.state.tensor_state import TensorState
from holdfast.torch.values import generators as random_generators


class PeerState:
    """A view of a TrainingState."""

    def __init__(self, tensors: TensorState, capture: TensorCapture, objects: StatefulObjects,
                 generators: Mapping[str, Any], buffers: LiveBuffers, data: Loaders) -> None:
        self._tensors, self._capture, self._objects = tensors, capture, objects
        self._generators, self._buffers, self._data = generators, buffers, data
        self.still = StillBuffers(capture.describe)
        # All buffers, and the pieces of those that are in a record.
        self._of_record: tuple[list[Any], list[tuple[Piece, str]]] | None = None

    def forget(self) -> None:
        """Tensors may have been replaced, or have other names now."""
        self._of_record = None

    def record(self, gradients: Callable[[], Gradients], most: int) -> Record:
        """What only this rank has. Nothing is copied yet.

        Gradients are part of it if they have at most `most` bytes.
        """
        buffers = self._record_pieces()
        values: dict[str, Any] = {"things": {}, "seals": self.still.seals(buffers)}
        still = self.still.are_still(values["seals"])
        pieces = [(piece, name) for piece, name in buffers if name not in still]
        averaged: list[Piece] = []
        for one in self._objects.to_save:
            values["things"][one.key], found = one.capture()
            averaged += [piece for piece in found if piece.name in self._objects.average_buffers]
            pieces += [(piece, self._capture.object_name(piece, True)) for piece in found
                       if piece.copies == "own" or self._objects.is_rank_own(one)]
        values[BUFFER_SEALS] = self._capture.seals_of(averaged)
        if most:
            tree, found = Stateful(GRADIENTS, gradients()).capture()
            if sum(piece.tensor.nbytes for piece in found) <= most:
                values[GRADIENTS] = tree
                pieces += [(piece, self._capture.object_name(piece, True)) for piece in found]
        values["options"] = self._tensors.optimizers.options()
        values["generators"] = self.generators()
        values["data draws"] = self._data.draws
        values["tensors"] = [describe(piece, name) for piece, name in pieces]
        return Record(values, [piece.tensor for piece, _ in pieces])

    def _record_pieces(self) -> list[tuple[Piece, str]]:
        """The buffers in a record, with their names; found anew only if one was replaced."""
        buffers = self._buffers.now()
        if self._of_record is None or self._of_record[0] is not buffers:
            self._of_record = (buffers, [(piece, self._capture.saved_name(piece))
                                         for piece in self._tensors.pieces() if is_of_record(piece)])
        return self._of_record[1]

    def seals(self) -> dict[str, str]:
        """The seals of large buffers, which all ranks tell each other (still_buffers.py)."""
        return self.still.seals(self._record_pieces())

    def shared_pieces(self) -> list[tuple[Piece, str]]:
        """The tensors that other ranks may hold alike, and their names in a checkpoint."""
        still = self.still.are_still(self.seals())
        shared = [(piece, name) for piece in self._tensors.pieces()
                  if (name := self._capture.saved_name(piece)) in still or not is_of_record(piece)]
        for one in self._objects.to_save:
            if not self._objects.is_rank_own(one):
                shared += [(piece, self._capture.object_name(piece, False))
                           for piece in one.capture()[1] if piece.copies != "own"]
        return shared

    def firsts(self) -> list[tuple[Piece, str, list[int]]]:
        """The buffers of which the first rank's values count, their names, and the ranks that have them."""
        return [(piece, self._capture.saved_name(piece), self._capture.ranks_with(piece))
                for piece in self._tensors.pieces() if piece.copies == "first"]

    def groups_of_parameters(self) -> list[dict[str, int]]:
        """The number of the group that each parameter is in, by all its names, for each optimizer."""
        return self._tensors.optimizers.groups_of_parameters()

    def generators(self) -> dict[str, Any]:
        """The random generators as a record has them."""
        return random_generators.capture(self._generators)

    def loader_state(self) -> Any:
        """The position of the loader as a record has it; None if there is no loader."""
        return next((one.capture()[0] for one in self._objects.to_save if one.key == "data"), None)

    def things(self) -> dict[str, Any]:
        """The plain values of all objects as a record has them."""
        return {one.key: one.capture()[0] for one in self._objects.to_save}

    def options(self) -> list[Any]:
        """The options of all parameter groups as a record has them."""
        return self._tensors.optimizers.options()

    def load_options(self, options: Sequence[Any]) -> None:
        """Gives all parameter groups the options of another rank."""
        self._tensors.optimizers.load_options(options)

    def but_loader(self) -> list[Stateful]:
        """All objects but the loader."""
        return [one for one in self._objects.to_save if one.key != "data"]

    def is_comm_hooks(self, one: Stateful) -> bool:
        """True for the state of the communication hooks of DDP."""
        return one is self._objects.hooks_stateful

    def captured_objects(self) -> dict[str, tuple[Any, list[Piece]]]:
        """The plain values and the tensors of all objects, by key."""
        return {one.key: one.capture() for one in self._objects.to_save}

    @property
    def own_keys(self) -> set[str]:
        """The keys of objects that each rank has for itself."""
        return {one.key for one in self._objects.to_save if self._objects.is_rank_own(one)}
