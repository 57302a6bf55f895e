"""Which box of the whole tensor a rank holds, by the tensor itself or by a declared rule.

A box is a range of indices in each dimension. For a DTensor, each dimension is split first by its
Shard placements, in the order of the mesh's axes. Each piece is then split again by the
_StridedShard placements (FSDP over tensor parallelism). A split makes pieces of ceil(size / n)
elements, so that the last pieces may be short or empty. torch's own
compute_local_shape_and_global_offset is not used: if a split is uneven, its result differs from
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

Copies = Literal["equal", "first", "own"]  # what Part.copies may be


@dataclass(frozen=True)
class Part:
    """Where a rank's tensor lies in the whole one, which has this shape.

    `copies` says what ranks with the same box hold:

    "equal"  the same bytes, which are saved once.
    "first"  any bytes; those of the rank with the lowest number are saved.
    "own"    different bytes; each rank saves its own.
    """

    shape: tuple[int, ...]
    box: Box
    copies: Copies = "equal"


def whole(shape: Sequence[int], copies: Copies = "equal") -> Part:
    """The part that covers the whole tensor of this shape."""
    return Part(tuple(shape), Box([(0, size) for size in shape]), copies)


@dataclass(frozen=True)
class Sharded:
    """The rule for tensors, other than DTensors, of which each rank holds a piece along `dim`.

    This rank's piece is number `index` of `count`. `size` is the size of the whole along `dim`.
    It is split into pieces of ceil(size / count) elements, of which the last ones may be short or
    empty. Without `size`, all pieces are equally large.
    """

    dim: int
    index: int
    count: int
    size: int | None = None

    def part(self, held: Sequence[int]) -> Part:
        """The part, from the shape of the piece that this rank holds."""
        size = held[self.dim] * self.count if self.size is None else self.size
        shape = list(held)
        shape[self.dim] = size
        return self.part_of_whole(shape)

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
    """The box of the rank at `coordinate` of a mesh, whose sizes are `mesh`.

    Raises ValueError, with the placement's name, if the pieces of a placement are not boxes.
    """
    extents = [(0, size) for size in shape]
    for strided in (False, True):  # the strided ones split what the others have split
        for axis, placement in enumerate(placements):
            if isinstance(placement, Replicate) or _is_strided(placement) != strided:
                continue
            dim = placement.dim % len(extents)  # type: ignore[attr-defined]
            if strided:
                _check_stride(axis, placement, placements, mesh, len(extents))
            extents[dim] = _cut(extents[dim], coordinate[axis], mesh[axis])
    return Box(extents)


def part_of(tensor: torch.Tensor, where: str = "tensor", rule: Rule | None = None) -> Part | None:
    """This rank's part: by the rule if there is one, else by the tensor itself.

    A tensor that is no DTensor is whole. None if this rank is outside the mesh of a DTensor and
    holds nothing. Raises ValueError, beginning with `where`, if this rank does not hold a box of
    the tensor, or holds another shape than its placements or its rule say.
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
        raise ValueError(f"{where}: this rank holds a tensor of shape {held}; expected "
                         f"{tuple(part.box.shape)}, by its placements or its rule")
    return part


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The local tensor: what this process holds. It is detached and shares the memory."""
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local.detach()


def is_plain(tensor: torch.Tensor) -> bool:
    """A quick check: if True, check_plain() accepts the tensor; if False, it may."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not (tensor.is_meta or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def check_plain(tensor: torch.Tensor, where: str) -> None:
    """TypeError or ValueError, beginning with `where`, for what is no dense memory to save."""
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        raise ValueError(f"{where}: a lazy parameter without a shape; expected a forward "
                         "pass before the first save")
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    if type(local) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"{where}: a {_name(type(local))}; expected a torch.Tensor or a DTensor")
    if local.is_meta:
        raise ValueError(f"{where}: on the meta device; expected a tensor that has memory")
    if local.layout != torch.strided or local.is_quantized:
        kind = "is quantized" if local.is_quantized else f"has the layout {local.layout}"
        raise TypeError(f"{where}: {kind}; expected a dense tensor (torch.strided)")
    if local.is_conj() or local.is_neg():
        raise TypeError(f"{where}: has a conjugate or negative bit; expected the result of "
                        "resolve_conj() or resolve_neg()")


def rule_for(name: str, rules: Mapping[str, Rule]) -> Rule | None:
    """The first rule whose pattern, such as "model.*.running_mean", matches the name, or None."""
    for pattern, rule in rules.items():
        if fnmatchcase(name, pattern):
            return rule
    return None


def part_by_rule(shape: Sequence[int], rule: Rule, where: str, *, is_whole: bool = False) -> Part:
    """The part that a rule declares.

    `shape` is that of this rank's piece, or of the whole tensor if `is_whole`. A Part is returned
    as it is.
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
    raise ValueError(f"placement {placement!r} gives ranks no box of the tensor; expected Shard, "
                     "_StridedShard or Replicate")


def _check_stride(axis: int, placement: Placement, placements: Sequence[Placement],
                  mesh: Sequence[int], dimensions: int) -> None:
    """Raises ValueError if the pieces of a _StridedShard are not boxes.

    They are boxes if its split factor is the number of pieces that the Shards of the later mesh
    axes make of the same dimension.
    """
    dim = placement.dim % dimensions  # type: ignore[attr-defined]
    later = [mesh[k] for k, other in enumerate(placements)
             if k > axis and type(other) is Shard and other.dim % dimensions == dim]
    factor = placement.split_factor  # type: ignore[attr-defined]
    if factor != math.prod(later):
        raise ValueError(f"placement {placement!r}: later mesh axes split the dimension into "
                         f"{math.prod(later)} pieces; expected {factor}, its split factor")


def _cut(extent: tuple[int, int], index: int, count: int) -> tuple[int, int]:
    """Piece `index` of `count` pieces of a range. Pieces at the end may be short or empty."""
    lo, hi = extent
    size = -(-(hi - lo) // count)  # rounded up
    first = min(lo + size * index, hi)
    return first, min(first + size, hi)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
