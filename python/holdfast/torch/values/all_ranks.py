"""What all ranks tell each other."""

from typing import Any

import torch.distributed as dist


def all_ranks(value: Any, group: Any = None) -> list[Any]:
    """The values that all ranks pass, by rank; one value without a process group.

    A collective call.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    world = dist.get_world_size(group)
    values: list[Any] = [value] * world
    if world > 1:
        dist.all_gather_object(values, value, group)
    return values


def rank_in(group: Any = None) -> int:
    """The number of this process in the group, or in the job; 0 without a process group."""
    return dist.get_rank(group) if dist.is_available() and dist.is_initialized() else 0
