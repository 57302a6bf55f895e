"""Tensors without contents that lie as others do."""

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import TensorMeta


def empty_like(tensor: torch.Tensor, *, dtype: torch.dtype | None = None,
               device: torch.device | None = None) -> torch.Tensor:
    """As torch.empty_like(). Of a DTensor, this process makes its own part, and torch need not first find out
    how the result of an operation is cut, which takes a millisecond for each new shape."""
    if not isinstance(tensor, DTensor) or not _is_plain(tensor):
        return torch.empty_like(tensor, dtype=dtype, device=device)
    part, spec = torch.empty_like(tensor._local_tensor, dtype=dtype, device=device), tensor._spec
    if part.dtype != tensor.dtype:
        spec = spec.shallow_copy_with_tensor_meta(TensorMeta(tensor.shape, tensor.stride(), part.dtype))
    return DTensor(part, spec, requires_grad=False)


def _is_plain(tensor: DTensor) -> bool:
    """True if each rank has rows or columns of it, in the usual order, or all of it."""
    return tensor.is_contiguous() and tensor._local_tensor.is_contiguous() \
        and all(type(one) in (Shard, Replicate) for one in tensor._spec.placements)
