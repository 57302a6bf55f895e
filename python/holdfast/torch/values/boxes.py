"""Which box of the whole tensor a rank holds, told by the live tensor or by a declared rule.

For a DTensor: along each dimension, the plain Shards cut from left to right of the mesh, and the
strided ones (FSDP over tensor parallelism) cut what the plain ones left. Each cut makes pieces of
ceil(size / n) elements, so that the last pieces may be short or empty. torch's own
compute_local_shape_and_global_offset is not used: if a cut is uneven, its result differs from
what the ranks hold.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from holdfast import Box

Copies = Literal["equal", "first", "own"]


@dataclass(frozen=True)
class Part:
    """Where a rank's tensor lies in the whole one.

    `copies` says what ranks with the same box hold: "equal" bytes; any bytes, of which those of
    the "first" rank are saved; or "own" bytes, which each rank saves.
    """

    shape: tuple[int, ...]
    box: Box
    copies: Copies = "equal"


def whole(shape: Sequence[int], copies: Copies = "equal") -> Part:
    """The part that is the whole tensor."""
    return Part(tuple(shape), Box([(0, size) for size in shape]), copies)


@dataclass(frozen=True)
class Sharded:
    """The rule for plain tensors of which each rank holds a piece along `dim`.

    This rank's piece is number `index` of `count`. `size` is the size of the whole along `dim`,
    cut into pieces of ceil(size / count), of which the last may be short. Without `size`, all
    pieces are equally large.
    """

    dim: int
    index: int
    count: int
    size: int | None = None

    def part(self, held: Sequence[int]) -> Part:
        """The part, from the shape of the piece that this rank holds."""
        size = held[self.dim] * self.count if self.size is None else self.size
        return self.part_of_whole([*held[: self.dim], size, *held[self.dim :][1:]])

    def part_of_whole(self, shape: Sequence[int]) -> Part:
        """The part, from the shape of the whole tensor."""
        extents = [(0, size) for size in shape]
        extents[self.dim] = _cut(extents[self.dim], self.index, self.count)
        return Part(tuple(shape), Box(extents))


Rule = Copies | Part | Sharded


def box_at(
    shape: Sequence[int],
    placements: Sequence[Placement],
    mesh: Sequence[int],
    coordinate: Sequence[int],
) -> Box:
    """The box of the rank at a coordinate of a mesh with those sizes.

    ValueError names a placement whose pieces are no boxes.
    """
    extents = [(0, size) for size in shape]
    for strided in (False, True):
        for axis, placement in enumerate(placements):
            if isinstance(placement, Replicate) or _is_strided(placement) != strided:
                continue
            dim = placement.dim % len(extents)  # type: ignore[attr-defined]
            if strided:
                _check_stride(axis, placement, placements, mesh, len(extents))
            extents[dim] = _cut(extents[dim], coordinate[axis], mesh[axis])
    return Box(extents)


def part_of(tensor: torch.Tensor, where: str = "tensor", rule: Rule | None = None) -> Part | None:
    """Where the tensor lies: by the rule if there is one, else by the tensor itself.

    A plain tensor is whole. None if this rank is outside the mesh of a DTensor and holds
    nothing. ValueError, beginning with `where`, for a tensor that is no box of the whole.
    """
    if rule is not None:
        part = part_by_rule(local_of(tensor).shape, rule, where)
    elif not isinstance(tensor, DTensor):
        return whole(tensor.shape)
    else:
        coordinate = tensor.device_mesh.get_coordinate()
        if coordinate is None:
            return None
        try:
            box = box_at(tensor.shape, tensor.placements, tensor.device_mesh.shape, coordinate)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        part = Part(tuple(tensor.shape), box)
    held = tuple(local_of(tensor).shape)
    if held != tuple(part.box.shape):
        raise ValueError(f"{where}: this rank holds {held}; expected {tuple(part.box.shape)}")
    return part


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of the tensor: detached, with the same memory."""
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local.detach()


def is_plain(tensor: torch.Tensor) -> bool:
    """A quick first look: True if check_plain() surely accepts the tensor."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not (tensor.is_meta or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def check_plain(tensor: torch.Tensor, where: str) -> None:
    """TypeError or ValueError, beginning with `where`, for a tensor without plain elements."""
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        raise ValueError(f"{where}: not initialised; expected a forward pass first")
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    if type(local) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"{where}: a {_name(type(local))}; expected a torch.Tensor or a DTensor")
    if local.is_meta:
        raise ValueError(f"{where}: on the meta device; expected a tensor with memory")
    if local.layout != torch.strided or local.is_quantized:
        kind = "quantized" if local.is_quantized else str(local.layout)
        raise TypeError(f"{where}: {kind}; expected a strided tensor of plain elements")
    if local.is_conj() or local.is_neg():
        raise TypeError(f"{where}: conjugated or negated lazily; expected it resolved, by "
                        "resolve_conj() or resolve_neg()")


def rule_for(name: str, rules: Mapping[str, Rule]) -> Rule | None:
    """The first rule whose pattern, such as "model.*.running_mean", matches the name."""
    for pattern, rule in rules.items():
        if fnmatchcase(name, pattern):
            return rule
    return None


def part_by_rule(shape: Sequence[int], rule: Rule, where: str, *, is_whole: bool = False) -> Part:
    """The part that a rule declares.

    `shape` is that of this rank's piece, or of the whole tensor if `is_whole`.
    """
    if isinstance(rule, Part):
        return rule
    if isinstance(rule, Sharded):
        return rule.part_of_whole(shape) if is_whole else rule.part(shape)
    if rule not in ("equal", "first", "own"):
        raise ValueError(f'{where}: rule {rule!r}; expected "equal", "first", "own", '
                         "a Part or Sharded")
    return whole(shape, rule)


def _is_strided(placement: Placement) -> bool:
    if type(placement) is _StridedShard:
        return True
    if type(placement) is Shard:
        return False
    raise ValueError(f"placement {placement!r} leaves ranks no box of the tensor; expected Shard "
                     "or Replicate")


def _check_stride(axis: int, placement: Placement, placements: Sequence[Placement],
                  mesh: Sequence[int], rank: int) -> None:
    """ValueError unless the stride is that of the Shards to its right: the piece is no box then."""
    dim = placement.dim % rank  # type: ignore[attr-defined]
    later = [mesh[k] for k, other in enumerate(placements)
             if k > axis and type(other) is Shard and other.dim % rank == dim]
    factor = placement.split_factor  # type: ignore[attr-defined]
    if factor != math.prod(later):
        raise ValueError(f"placement {placement!r} with {math.prod(later)} pieces to its right; "
                         f"expected as many as its split factor {factor}")


def _cut(extent: tuple[int, int], index: int, count: int) -> tuple[int, int]:
    lo, hi = extent
    size = -(-(hi - lo) // count)
    first = min(lo + size * index, hi)
    return first, min(first + size, hi)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
