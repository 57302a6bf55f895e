"""Tells which calls of DDP send what ranks have otherwise, too.

When it is made, DDP sends the parameters of rank 0 to all ranks. A replacement gets its parameters from
the other ranks later, so it needs no answer to these calls.

Before forward passes, DDP sends the buffers of rank 0, and writes what has come into the buffers without
counting it (Tensor._version). A call that fails leaves zeros as a rule: here it must leave what was there,
because large buffers that nothing else writes to are not copied for the next try (buffers_before_step.py).
"""

import functools
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.nn.parallel import distributed

if TYPE_CHECKING:
    from holdfast.torch.recover.group import Groups


def install(groups: "Groups") -> None:
    """Called once in a new worker."""
    send, broadcast = distributed._sync_module_states, dist._broadcast_coalesced

    @functools.wraps(send)
    def send_state(*args: Any, **options: Any) -> Any:
        groups.log.is_state = True
        try:
            return send(*args, **options)
        finally:
            groups.log.is_state = False

    @functools.wraps(broadcast)
    def send_tensors(*args: Any, **options: Any) -> Any:
        groups.keeps_outputs = True
        try:
            return broadcast(*args, **options)
        finally:
            groups.keeps_outputs = False

    distributed._sync_module_states, dist._broadcast_coalesced = send_state, send_tensors
