"""What ranks decide by themselves if their launcher is killed while a replacement starts.

The store of the job outlives the launcher. Survivors say there where they are in their update, each
of them decides as the launcher would have, and the replacement reads what they have decided. Then it
is filled as ever, and all ranks save and stop. If the launcher has told some of them its decision, but not
all, they pass it on to the others, and do not say where they are: so there is one decision.
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
_DECISION = "decided"  # its key in the store


def tell_orphaned(rank: int) -> None:
    """Tells the launcher of host 0 that the launcher of this process has died, if that is possible."""
    with contextlib.suppress(Exception):
        store = connect_to_store(timedelta(seconds=_TELL))
        number = store.add(ORPHANS, 1)
        store.set(f"{ORPHANS}/{number}", json.dumps({"rank": rank, "pid": os.getpid()}))


def pass_on(prefix: str, decision: dict[str, Any]) -> None:
    """Tells the others what the launcher has decided, if that is possible."""
    with contextlib.suppress(Exception):
        _store(prefix, _TELL).set(_DECISION, json.dumps(decision))


def decide(prefix: str, worker: int, survivors: list[int], status: dict[str, Any],
           floor: int) -> dict[str, Any]:
    """What is decided about the update; `floor` is the update of the decision before.

    UnavailableError if a survivor does not say in time where it is, or if they cannot go on.
    """
    store = _store(prefix)
    store.set(f"at/{worker}", json.dumps(status))
    keys = [f"at/{other}" for other in survivors]
    if _wait_for(store, [_DECISION], keys) == 1:
        told = {other: json.loads(store.get(key)) for other, key in zip(survivors, keys, strict=True)}
        decision = decisions.decide(told, floor)
        if decision.refused:
            raise UnavailableError(decision.refused)
        store.set(_DECISION, json.dumps({"target": decision.target, "courses": decision.courses}))
    return _read(store)


def read_decision(prefix: str) -> dict[str, Any]:
    """What the survivors have decided, for a replacement. UnavailableError if it does not come."""
    store = _store(prefix)
    _wait_for(store, [_DECISION])
    return _read(store)


def _read(store: Any) -> dict[str, Any]:
    decision: dict[str, Any] = json.loads(store.get(_DECISION))
    return decision


def _store(prefix: str, timeout: float = PATIENCE) -> Any:
    return dist.PrefixStore(f"holdfast/{prefix}/alone", connect_to_store(timedelta(seconds=timeout)))


def _wait_for(store: Any, *either: list[str]) -> int:
    """Waits until one of these sets of keys is there. Returns which one."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for k, keys in enumerate(either):
            if store.check(keys):
                return k
        time.sleep(_LOOK)
    raise UnavailableError("the launcher was killed, and not all ranks answer")
