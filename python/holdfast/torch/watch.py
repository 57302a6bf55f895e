"""Whether the tensors that were walked are still the ones that are there, told cheaply.

A walk over thousands of tensors costs milliseconds, and it is wanted at every save. Modules
and optimizers keep their tensors in dicts: to look each up there again, and its address,
costs a tenth of that.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor


class Watch:
    """What was found, and where."""

    def __init__(self) -> None:
        self._plain: list[tuple[Mapping[Any, Any], Any, torch.Tensor, int]] = []
        self._distributed: list[tuple[DTensor, torch.Tensor, int]] = []
        self._sizes: list[tuple[Mapping[Any, Any], int]] = []
        self._objects: list[tuple[Mapping[Any, Any], Any]] = []

    def tensor(self, holder: Mapping[Any, Any], key: Any, tensor: torch.Tensor) -> None:
        """It was found in that dict. A DTensor is watched itself: FSDP swaps it there."""
        if isinstance(tensor, DTensor):
            local = tensor._local_tensor
            self._distributed.append((tensor, local, local.data_ptr()))
        else:
            self._plain.append((holder, key, tensor, tensor.data_ptr()))

    def object(self, holder: Mapping[Any, Any], key: Any) -> None:
        """Something that is no tensor was found there."""
        self._objects.append((holder, key))

    def size(self, holder: Mapping[Any, Any]) -> None:
        """The dict had as many entries as it has now."""
        self._sizes.append((holder, len(holder)))

    def same(self) -> bool:
        """True if all of it is as it was."""
        return (
            all(len(holder) == size for holder, size in self._sizes)
            and all(holder.get(key) is tensor and tensor.data_ptr() == address
                    for holder, key, tensor, address in self._plain)
            and all(tensor._local_tensor is local and local.data_ptr() == address
                    for tensor, local, address in self._distributed)
            and all(_is_simple(holder.get(key)) for holder, key in self._objects)
        )


def _is_simple(value: Any) -> bool:
    """True if no tensor can be in it."""
    return value is None or isinstance(value, (bool, int, float, str, bytes))
