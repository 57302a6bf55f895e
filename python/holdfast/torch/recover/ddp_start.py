"""Tells when DDP sends the parameters of rank 0 to all ranks, as it does when it is made.

A replacement gets its parameters from the other ranks later, so it needs no answer to these calls.
"""

import functools
from typing import Any

from torch.nn.parallel import distributed

from holdfast.torch.recover.call_log import CallLog


def install(log: CallLog) -> None:
    """Called once in a new worker."""
    send = distributed._sync_module_states

    @functools.wraps(send)
    def send_state(*args: Any, **options: Any) -> Any:
        log.is_state = True
        try:
            return send(*args, **options)
        finally:
            log.is_state = False

    distributed._sync_module_states = send_state
