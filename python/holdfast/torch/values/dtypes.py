"""Element types of the store, of torch and of numpy, and tensors as bytes."""

import ctypes
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import torch

from holdfast import Dtype, TensorInfo, parse_dtype


@dataclass(frozen=True)
class SavedTensor:
    """The dtype and shape of a tensor in a checkpoint: what is needed to allocate it."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, info: TensorInfo) -> Self:
        """From the checkpoint's description of the tensor."""
        return cls(torch_dtype(info.dtype), tuple(info.shape))


def torch_dtype(dtype: Dtype) -> torch.dtype:
    """The type in torch; NotImplementedError if this torch has no such type."""
    found = _known().get(dtype)
    if found is None:
        raise NotImplementedError(f"dtype {dtype.name}: torch {torch.__version__} has no such type")
    return found


def named_dtype(name: str) -> torch.dtype:
    """The dtype with that name in torch; ValueError if there is none."""
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype {name}; expected one that torch {torch.__version__} has")
    return dtype


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The elements of a tensor, in order, as bytes."""
    if type(tensor) is torch.Tensor and tensor.is_cpu and tensor.is_contiguous() and not (
            tensor.is_conj() or tensor.is_neg()):
        return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def tensor_from(data: bytes, dtype: str, shape: Iterable[int]) -> torch.Tensor:
    """The tensor that has those bytes as its elements."""
    kind = named_dtype(dtype)
    sizes = tuple(shape)
    size = math.prod(sizes) * kind.itemsize
    if size != len(data):
        raise ValueError(f"tensor of {size} bytes with {len(data)}; expected as many")
    tensor = torch.empty(sizes, dtype=kind)
    if data:
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        tensor.view(-1).view(torch.uint8).copy_(flat)
    return tensor


def descr_of(dtype: Any) -> Any:
    """What numpy's files have of a dtype of numpy."""
    import numpy

    return numpy.lib.format.dtype_to_descr(dtype)


def dtype_from(descr: Any) -> Any:
    """The dtype of numpy that descr_of() has described; ValueError for one that has Python objects."""
    import numpy

    dtype = numpy.lib.format.descr_to_dtype(descr)
    if dtype.hasobject:
        raise ValueError(f"numpy dtype {descr!r}: holds Python objects; expected plain elements")
    return dtype


@cache
def _known() -> dict[Dtype, torch.dtype]:
    found: dict[Dtype, torch.dtype] = {}
    for value in vars(torch).values():
        if isinstance(value, torch.dtype):
            try:
                found[parse_dtype(str(value).removeprefix("torch."))] = value
            except NotImplementedError:
                continue  # torch has this type, the store does not
    return found
