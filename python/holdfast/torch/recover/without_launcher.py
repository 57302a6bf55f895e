"""What ranks decide by themselves if their launcher is killed while a replacement starts.

The store of the job outlives the launcher. Survivors say there where they are in their update, each
of them decides as the launcher would have, and the replacement reads what they have decided. Then it
is filled as ever, and all ranks save and stop.
"""

import contextlib
import json
import os
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from holdfast.errors import UnavailableError
from holdfast.launch import decisions
from holdfast.launch.store import ORPHANS
from holdfast.torch.recover.inner_group import connect_to_store

PATIENCE = 60.0  # seconds that ranks wait for each other without a launcher
_TELL = 5.0  # seconds to reach the store
_LOOK = 0.02  # seconds between two looks at the store


def tell_orphaned(rank: int) -> None:
    """Tells the launcher of host 0 that the launcher of this process has died, if that is possible."""
    with contextlib.suppress(Exception):
        store = connect_to_store(timedelta(seconds=_TELL))
        number = store.add(ORPHANS, 1)
        store.set(f"{ORPHANS}/{number}", json.dumps({"rank": rank, "pid": os.getpid()}))


def decide(prefix: str, rank: int, survivors: list[int], status: dict[str, Any],
           floor: int) -> dict[str, Any]:
    """What is decided about the update; `floor` is the update of the decision before.

    UnavailableError if a survivor does not say in time where it is, or if they cannot go on.
    """
    store = _store(prefix)
    store.set(f"at/{rank}", json.dumps(status))
    told = [json.loads(one) for one in _wait_for(store, [f"at/{other}" for other in survivors])]
    decision = decisions.decide(dict(zip(survivors, told, strict=True)), floor)
    if decision.refused:
        raise UnavailableError(decision.refused)
    store.set("target", str(decision.target))
    return {"target": decision.target, "course": decision.courses[rank]}


def read_decision(prefix: str) -> dict[str, Any]:
    """What the survivors have decided, for a replacement. UnavailableError if it does not come."""
    (target,) = _wait_for(_store(prefix), ["target"])
    return {"target": int(target), "course": "fill"}


def _store(prefix: str) -> Any:
    return dist.PrefixStore(f"holdfast/{prefix}/alone", connect_to_store(timedelta(seconds=PATIENCE)))


def _wait_for(store: Any, keys: list[str]) -> list[str]:
    deadline = time.monotonic() + PATIENCE
    while not store.check(keys):
        if time.monotonic() > deadline:
            raise UnavailableError("the launcher was killed, and not all ranks answer")
        time.sleep(_LOOK)
    return [store.get(key).decode() for key in keys]
