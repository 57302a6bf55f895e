"""Memory of new tensors, which they get only when they are filled.

If memory suffices for the old state and the new one together, all new tensors get theirs at once. Else the
state moves in parts: the tensors of a part get memory, are filled, and the old ones of the same names give
theirs back. So a rank needs hardly more than the larger of the two states. But from the first part on nobody
can go back: the old state is not whole any more.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.overrides import TorchFunctionMode

from holdfast.torch.state.piece import Piece

_SMALL = 1 << 16  # bytes of a tensor that has its memory from the beginning
_PARTS = 16  # of a state that moves in parts, or more
_RESERVE = 0.1  # part of the free memory that stays free


class LateMemory:
    """New tensors without memory."""

    def __init__(self) -> None:
        self._without: dict[int, tuple[torch.UntypedStorage, int]] = {}  # with their bytes, by address

    def take_from(self, tensor: torch.Tensor) -> torch.Tensor:
        """Takes the memory of a tensor that has any contents."""
        if not isinstance(tensor, DTensor) or _is_even(tensor):
            storage = storage_of(tensor)
            if storage.nbytes() > _SMALL:
                self._without[storage._cdata] = storage, storage.nbytes()
                storage.resize_(0)
        return tensor

    @contextlib.contextmanager
    def of_new_tensors(self) -> Iterator[None]:
        """Inside it, tensors that torch.empty() makes have no memory."""
        with _TakesMemory(self):
            yield

    def give(self, tensors: Sequence[torch.Tensor] | None = None) -> None:
        """Gives tensors their memory, or all that have none."""
        keys = list(self._without) if tensors is None else [storage_of(one)._cdata for one in tensors]
        for key in keys:
            if key in self._without:
                storage, size = self._without.pop(key)
                storage.resize_(size)

    def size_of(self, tensor: torch.Tensor) -> int:
        """How many bytes the storage of a tensor has, or will have."""
        storage = storage_of(tensor)
        return self._without[storage._cdata][1] if storage._cdata in self._without else storage.nbytes()

    def forget(self, tensor: torch.Tensor) -> None:
        """The tensor gets its memory elsewhere."""
        self._without.pop(storage_of(tensor)._cdata, None)

    def needs(self) -> dict[str, int]:
        """How many bytes tensors will need on this host ("cpu"), and on its device."""
        found: dict[str, int] = {}
        for storage, size in self._without.values():
            found[storage.device.type] = found.get(storage.device.type, 0) + size
        return found


class _TakesMemory(TorchFunctionMode):
    def __init__(self, late: LateMemory) -> None:
        self._late = late

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        return self._late.take_from(made) if function in (torch.empty, torch.empty_like) else made


def stand_ins(pieces: list[tuple[Piece, str]]) -> list[tuple[Piece, str]]:
    """The same pieces, with tensors that have memory of one element: enough to say what they are."""
    return [(replace(piece, tensor=torch.empty((), dtype=piece.tensor.dtype).expand(piece.tensor.shape)), name)
            for piece, name in pieces]


def free_on(tensor: torch.Tensor) -> None:
    """Gives back the memory of a tensor that nobody needs any more."""
    storage_of(tensor).resize_(0)


def is_tight(told: Sequence[Mapping[str, Any]]) -> bool:
    """Whether memory does not suffice for both states, by what room_for() says on all workers."""
    hosts = {one["host"] for one in told}
    needed = {host: sum(one["needs"].get("cpu", 0) for one in told if one["host"] == host) for host in hosts}
    return any(one["is_short"] or needed[one["host"]] > one["free"] for one in told)


def room_for(late: LateMemory) -> dict[str, Any]:
    """What this worker needs and has, as plain values."""
    needs, there = late.needs(), 0
    if needs.get("cuda"):
        there = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return {"host": Path("/proc/sys/kernel/random/boot_id").read_text(), "needs": needs,
            "free": int((1 - _RESERVE) * _free_memory()),
            "is_short": needs.get("cuda", 0) > (1 - _RESERVE) * there}


def parts_of(tensors: Mapping[str, int]) -> list[set[str]]:
    """The names of tensors in parts that are moved one after the other; given are their bytes."""
    most, parts, size = sum(tensors.values()) / _PARTS, [set[str]()], 0
    for name, own in tensors.items():
        if parts[-1] and size + own > most:
            parts.append(set())
            size = 0
        parts[-1].add(name)
        size += own
    return parts


def _free_memory() -> int:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """The memory that this process has of a tensor."""
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage()


def _is_even(tensor: DTensor) -> bool:
    """False if FSDP2 pads the part of this rank, for which it copies it when it is made."""
    return all(not isinstance(placed, Shard) or tensor.shape[placed.dim] % tensor.device_mesh.size(axis) == 0
               for axis, placed in enumerate(tensor.placements))
