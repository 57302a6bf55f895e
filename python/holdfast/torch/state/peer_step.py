"""What living ranks tell a replacement: the state between two updates, as a checkpoint has it.

Tensors that ranks hold alike come from any of them. What only the lost rank had is its record,
which another rank keeps: its generators, the position of its loader, its buffers (recover/).
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from holdfast import Dtype, parse_dtype
from holdfast.torch.data.read_batch import mix_seeds, seed_all
from holdfast.torch.state import gradients
from holdfast.torch.state.piece import Piece
from holdfast.torch.values import generators
from holdfast.torch.values.dotted_names import name_a_few


@dataclass(frozen=True)
class PeerTensor:
    """The description of a tensor, with the attributes that a checkpoint's has."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    aliases: tuple[str, ...] = ()

    @classmethod
    def of(cls, wire: Sequence[Any]) -> "PeerTensor":
        """From what describe() made."""
        name, dtype, shape, aliases = wire
        return cls(name, parse_dtype(dtype), tuple(shape), tuple(aliases))


def describe(piece: Piece, name: str) -> tuple[str, str, tuple[int, ...], tuple[str, ...]]:
    """The description of a piece's whole tensor, as plain values."""
    dtype = str(piece.tensor.dtype).removeprefix("torch.")
    return name, dtype, tuple(piece.shape), piece.aliases


@dataclass
class PeerStep:
    """The state of a step, with the attributes that a checkpoint's has (_native.SavedStep)."""

    step: int
    tensors: list[PeerTensor]
    objects: dict[str, Any]
    rank_objects: list[dict[str, Any]]
    folder: str = "the other ranks"


@dataclass
class CarriedStep(PeerStep):
    """The state of all ranks before the change, with the attributes that a checkpoint's has."""

    own: dict[str, Any] | None = None  # the objects of the process whose place this rank has now
    seed: int = 0  # of a place that no rank had before; equal for all parts of a replica's tensors
    alike: dict[str, Any] = field(default_factory=dict)  # named generators that all ranks had in one state
    is_mine: bool = False  # `own` are those of this very process
    late: list[str] = field(default_factory=list)  # buffers of which the rank that counts has died

    def restore_generators(self, inexact: list[str], extra: Mapping[str, Any]) -> None:
        """Gives this process the random generators of its place in the configuration."""
        if self.late:
            inexact.append(f"{name_a_few(self.late)}: the rank whose values count has died, and those of "
                           "another one are taken")
        if self.own is None:
            inexact.append("generators: this place in the configuration is new, so they are seeded anew")
            torch.manual_seed(self.seed)
            seed_all(self.seed)
            for name, one in extra.items():  # each its own, as they do not have the same role
                generators.seed_one(one, mix_seeds(self.seed, zlib.crc32(name.encode())))
            generators.restore_extra(self.alike, extra)
        elif not self.is_mine:
            inexact += [line for line in generators.restore(self.own["generators"], extra)
                        if line not in inexact]


@dataclass
class Record:
    """What only one rank has."""

    values: dict[str, Any]  # "things", "generators", "data draws" and "tensors"
    tensors: list[torch.Tensor]  # in the order of values["tensors"]


def is_of_record(piece: Piece) -> bool:
    """True for a buffer of which each rank has its own values, whether all are saved or not."""
    return piece.kind == "buffer" and piece.copies != "equal"


def own_objects(record: Mapping[str, Any], own_keys: set[str], twin: Mapping[str, Any],
                differing: set[str]) -> dict[str, Any]:
    """The objects of the lost rank: those of a rank like it, with what is in the record.

    Of the objects in `things`, those count that are each rank's own, and those whose values the
    two ranks did not share.
    """
    things = {key: tree for key, tree in record["things"].items()
              if key in own_keys or key in differing}
    made = {**twin, "generators": record["generators"], "things": things}
    for key in ("data draws", gradients.KEY):
        if key in record:
            made[key] = record[key]
    return made


def put_back_position(record: Mapping[str, Any], objects: dict[str, Any],
                      rank_objects: dict[str, Any]) -> None:
    """Puts loader and random generators, in the objects of a save, back to where they were when
    the record was made."""
    rank_objects["generators"] = record["generators"]
    if "data draws" in record:
        rank_objects["data draws"] = record["data draws"]
    for tree in (objects, rank_objects):
        if "data" in tree.get("things", {}):
            tree["things"]["data"] = record["things"]["data"]
