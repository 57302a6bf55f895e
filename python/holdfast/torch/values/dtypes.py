"""The store's element types as torch's, and elements as bytes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Self

import torch

from holdfast import Dtype, TensorInfo, parse_dtype


@dataclass(frozen=True)
class Saved:
    """A tensor of a checkpoint: all that is needed to make room for it."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, info: TensorInfo) -> Self:
        """As the checkpoint describes it."""
        return cls(torch_dtype(info.dtype), tuple(info.shape))


def torch_dtype(dtype: Dtype) -> torch.dtype:
    """NotImplementedError if this torch has no such type."""
    found = _known().get(dtype)
    if found is None:
        raise NotImplementedError(f"dtype {dtype.name}: torch {torch.__version__} has none such")
    return found


def named_dtype(name: str) -> torch.dtype:
    """The dtype that torch calls so; ValueError if there is none."""
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype {name}, want one of this torch")
    return dtype


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The elements of a tensor, in order, as bytes."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def tensor_from(data: bytes, dtype: str, shape: Iterable[int]) -> torch.Tensor:
    """The tensor of those elements."""
    kind = named_dtype(dtype)
    sizes = tuple(shape)
    size = math.prod(sizes) * kind.itemsize
    if size != len(data):
        raise ValueError(f"tensor of {size} bytes with {len(data)}, want as many")
    tensor = torch.empty(sizes, dtype=kind)
    if data:
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        tensor.view(-1).view(torch.uint8).copy_(flat)
    return tensor


@cache
def _known() -> dict[Dtype, torch.dtype]:
    found: dict[Dtype, torch.dtype] = {}
    for value in vars(torch).values():
        if isinstance(value, torch.dtype):
            try:
                found[parse_dtype(str(value).removeprefix("torch."))] = value
            except NotImplementedError:
                continue  # torch has it, the store does not
    return found
