"""The store's element types as torch's."""

from functools import cache

import torch

from holdfast import Dtype, parse_dtype


def torch_dtype(dtype: Dtype) -> torch.dtype:
    """NotImplementedError if this torch has no such type."""
    found = _known().get(dtype)
    if found is None:
        raise NotImplementedError(f"dtype {dtype.name}: torch {torch.__version__} has none such")
    return found


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
