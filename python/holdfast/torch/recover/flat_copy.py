"""Copies of many small tensors in one block of memory, made by one call."""

from collections.abc import Sequence

import torch

_ALIGNMENT = 16


class FlatCopy:
    """The copy of a fixed list of tensors."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = list(tensors)
        ends, at = [], 0
        for tensor in self._tensors:
            ends.append(at)
            at += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        self._ends = [*ends[1:], at]
        self._block = torch.zeros(at, dtype=torch.uint8)
        self._views = [self._block[first:first + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                       for first, tensor in zip(ends, self._tensors, strict=True)]

    def is_of(self, tensors: Sequence[torch.Tensor]) -> bool:
        """True if the copy is of these very tensors."""
        return len(tensors) == len(self._tensors) and all(
            one.data_ptr() == other.data_ptr() and one.shape == other.shape
            and one.dtype == other.dtype
            for one, other in zip(tensors, self._tensors, strict=True))

    def take(self) -> None:
        """Copies the tensors as they are now."""
        if self._views:
            with torch.no_grad():
                torch._foreach_copy_(self._views, self._tensors)

    def put_back(self) -> None:
        """Gives the tensors the values of the copy."""
        if self._views:
            with torch.no_grad():
                torch._foreach_copy_(self._tensors, self._views)

    def equals(self, index: int) -> bool:
        """True if that tensor has the bits of its copy."""
        one, copy = self._tensors[index].cpu().contiguous(), self._views[index]
        return torch.equal(one.view(-1).view(torch.uint8), copy.reshape(-1).view(torch.uint8))

    def views(self) -> list[torch.Tensor]:
        """The copy of each tensor; its memory is that of this object."""
        return self._views

    def parts(self, data: bytes) -> list[bytes]:
        """The bytes of each tensor in a result of data()."""
        firsts = [0, *self._ends[:-1]]
        return [data[first:end] for first, end in zip(firsts, self._ends, strict=True)]

    def data(self) -> bytes:
        """The bytes of the copy."""
        return self._block.numpy().tobytes() if self._views else b""

    def load(self, data: bytes) -> None:
        """Makes these bytes the copy; ValueError if they are of other tensors."""
        if len(data) != self._block.numel():
            raise ValueError(f"record: {len(data)} bytes of tensors; expected "
                             f"{self._block.numel()}")
        if data:
            self._block.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
