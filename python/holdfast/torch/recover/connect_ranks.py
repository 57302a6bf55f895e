"""The ranks of a new generation tell each other their addresses through the store of the job, and connect."""

import hashlib
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from holdfast._native import TcpTransport
from holdfast.errors import UnavailableError
from holdfast.launch.environment import own_address_to
from holdfast.torch.recover.inner_group import shared, wait_for
from holdfast.torch.recover.link import Link

_CONNECT = 20.0  # seconds
_LOOK = 0.005  # seconds between two looks at the store


def connect_ranks(link: Link, generation: int) -> TcpTransport:
    """A transport between all ranks of the generation.

    UnavailableError if the launcher begins a newer generation meanwhile.
    """
    transport = _connect(link, link.address_key, generation, link.rank, link.world,
                         is_local=len(set(link.hosts)) == 1)
    link.say("met", generation=generation)
    return transport


def connect_workers(link: Link, change: dict[str, Any]) -> TcpTransport:
    """A transport between all workers that take part in a change of the configuration.

    Fails as connect_ranks() does.
    """
    workers = change["participants"]
    return _connect(link, "change", change["generation"], workers.index(link.slot), len(workers),
                    is_local=change["is_local"])


def connect_helpers(link: Link) -> TcpTransport:
    """A transport between the replacement of a rank and the processes that help it, all on one host.

    Fails as connect_ranks() does.
    """
    return _connect(link, f"helpers of {link.rank}", link.born, link.helper, link.helpers, is_local=True)


def _connect(link: Link, what: str, generation: int, number: int, of: int, *,
             is_local: bool) -> TcpTransport:
    store = dist.PrefixStore(f"holdfast/{link.incarnation}.{generation}",
                             shared.to_store(timedelta(seconds=_CONNECT)))
    transport = TcpTransport(number, of, token=_token(link, f"{generation}/{what}"),
                             host=_own_address(is_local))
    try:
        _meet(transport, store, [f"{what}/{other}" for other in range(of)], number,
              lambda: link.is_stale(generation))
    except BaseException:
        transport.close()  # a rank that is already connected to this one would wait for it
        raise
    return transport


def _meet(transport: TcpTransport, store: Any, keys: list[str], number: int, is_stale: Callable[[], bool]) -> None:
    store.set(keys[number], transport.address)
    while not store.check(keys):
        if is_stale():
            raise UnavailableError("a rank was lost while ranks connected again")
        time.sleep(_LOOK)
    addresses = [store.get(key).decode() for key in keys]
    wait_for(lambda: transport.connect(addresses, _CONNECT), is_stale)


def _own_address(is_local: bool) -> str:
    if is_local:
        return "127.0.0.1"
    return os.environ.get("HOLDFAST_HOST") or own_address_to(os.environ["MASTER_ADDR"])


def _token(link: Link, generation: str) -> bytes:
    """What the ranks of a generation prove to each other to know.

    A process of an older generation does not know it, so it cannot disturb this one.
    """
    text = f"{os.environ['HOLDFAST_LAUNCH_ID']}/{link.incarnation}/{generation}"
    return hashlib.sha256(text.encode()).digest()

