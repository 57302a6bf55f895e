"""The state of a job while its configuration changes: what each rank held before, and what that is of."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from holdfast import _native
from holdfast.resize.parallel import Parallel
from holdfast.torch.data.read_batch import mix_seeds
from holdfast.torch.elastic import known_shapes
from holdfast.torch.elastic.kept_memory import Place, place_of, take_memory
from holdfast.torch.elastic.late_memory import LateMemory, free_on, storage_of
from holdfast.torch.state.peer_step import CarriedStep, PeerTensor, describe
from holdfast.torch.state.piece import Piece


@dataclass
class CarriedState:
    """What this process held before the change; a process that joins holds nothing."""

    pieces: list[_native.Piece] = field(default_factory=list)
    told: dict[str, Any] | None = None  # for the other ranks, as plain values
    members: list[int] = field(default_factory=list)  # the workers that were ranks, by rank
    held: list[torch.Tensor] = field(default_factory=list)  # keeps the memory of the pieces
    places: dict[Place, torch.Tensor] = field(default_factory=dict)  # the same tensors, by their boxes
    # Buffers of which the first rank's values count: pieces, descriptions, and the ranks that have them.
    firsts: list[tuple[_native.Piece, Any, list[int]]] = field(default_factory=list)
    _stay: set[int] = field(default_factory=set)  # the memory of new tensors

    def is_of(self, to: str, members: list[int]) -> bool:
        """True if that is the configuration before, with the same workers."""
        return self.told is not None and self.told["parallel"] == to and self.members == members

    @classmethod
    def of(cls, checkpointer: Any, step: int, parallel: Parallel, members: list[int]) -> "CarriedState":
        """What this rank has after that step. The job need not be open any more when it is used."""
        state, captured = checkpointer._state, checkpointer._look()
        firsts = state.peers.firsts()
        names = {name for _, name, _ in firsts}
        pieces = [(piece, name) for piece, name in state.saved_pieces() if name not in names]
        told = {"step": step, "tensors": [describe(piece, name) for piece, name in pieces],
                "objects": captured.objects, "rank objects": captured.rank_objects,
                "groups": state.peers.groups_of_parameters(), "parallel": str(parallel), "rank": state.rank,
                "seed": torch.initial_seed() % (1 << 62)}
        described = state.describe([(piece, name) for piece, name, _ in firsts])
        return cls(state.describe(pieces), told, members,
                   [piece.tensor for piece, *_ in [*pieces, *firsts]],
                   {place_of(piece, name): piece.tensor for piece, name in pieces},
                   [(one, describe(piece, name), ranks)
                    for one, (piece, name, ranks) in zip(described, firsts, strict=True)])

    def give(self, holders: list[int]) -> tuple[list[_native.Piece], dict[str, Any]]:
        """What this process gives, and tells, if those workers are left that hold the state."""
        if self.told is None:
            return [], {}
        left = {self.members.index(one) for one in holders}
        mine = [one for one in self.firsts if min(left.intersection(one[2])) == self.told["rank"]]
        late = [wire[0] for _, wire, ranks in mine if ranks[0] not in left]
        return ([*self.pieces, *(one for one, *_ in mine)],
                {**self.told, "tensors": [*self.told["tensors"], *(wire for _, wire, _ in mine)],
                 "late": late})

    def tell_shapes(self) -> list[Any]:
        """What is known of operations, for workers that join; once for each stage, whose ranks know the same."""
        assert self.told is not None
        place = Parallel.parse(self.told["parallel"]).coordinates(self.told["rank"])
        return known_shapes.tell() if place[1:] == (0, 0) else []

    def learn_shapes(self, told: list[Any]) -> None:
        """In a process that joins: takes what the others have told of operations."""
        for one in told if self.told is None else []:
            known_shapes.learn(one.get("shapes", []))

    def give_memory(self, new: list[tuple[Piece, str]], late: LateMemory) -> list[tuple[Piece, str]]:
        """Lets new tensors have the memory of old ones in the same places, which are the same bits."""
        made = take_memory(self.places, new, late)
        self._stay = {storage_of(piece.tensor)._cdata for piece, _ in made}
        return made

    def free(self, names: set[str]) -> None:
        """Gives back the memory of those tensors, but not of those that new ones have."""
        for one, tensor in zip([*self.told["tensors"], *(wire for _, wire, _ in self.firsts)] if self.told else [],
                               self.held, strict=True):
            if one[0] in names and storage_of(tensor)._cdata not in self._stay:
                free_on(tensor)


def bytes_of(told: list[Any]) -> dict[str, int]:
    """The bytes of all tensors that ranks have told of, by their names."""
    return {name: math.prod(shape) * getattr(torch, dtype).itemsize
            for holder in told if holder for name, dtype, shape, _ in holder["tensors"]}


def join_told(told: list[Any], parallel: Parallel, rank: int, before: int | None) -> CarriedStep:
    """The state that all participants have told of, for a rank of the new configuration.

    `before` is the rank that this process had; None if it had none.
    """
    holders = sorted((one for one in told if one), key=lambda one: one["rank"])
    first = holders[0]
    if len(steps := {one["step"] for one in holders}) > 1:
        raise ValueError(f"ranks have the states of steps {', '.join(map(str, sorted(steps)))}; expected one")
    old = Parallel.parse(first["parallel"])
    tensors = {one[0]: one for holder in holders for one in holder["tensors"]}
    place = parallel.coordinates(rank)
    # A place means the same as before if the model is cut in the same way.
    seed = mix_seeds(mix_seeds(first["seed"], first["step"]), place[0] << 32 | place[1])
    is_alike = (old.pp, old.tp) == (parallel.pp, parallel.tp)
    named = [one["rank objects"]["generators"]["extra"] for one in holders]
    alike = {name: state for name, state in named[0].items() if all(one.get(name) == state for one in named)}
    own = next((one for one in holders if is_alike and old.coordinates(one["rank"]) == place), None)
    return CarriedStep(
        first["step"], [PeerTensor.of(one) for one in tensors.values()], first["objects"],
        [one["rank objects"] for one in holders], own=None if own is None else own["rank objects"],
        seed=seed, alike=alike, is_mine=own is not None and own["rank"] == before,
        late=sorted({name for one in holders for name in one["late"]}))


def merged_groups(told: list[Any]) -> list[dict[str, int]]:
    """The group of each parameter by its names, for each optimizer, as any rank knows it."""
    ranks = [one["groups"] for one in told if one]
    return [{name: group for groups in of_one for name, group in groups.items()}
            for of_one in zip(*ranks, strict=True)]
