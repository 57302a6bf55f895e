"""Ranks of a new generation meet: they tell each other their addresses, and connect."""

import hashlib
import os
import time
from datetime import timedelta

import torch.distributed as dist

from holdfast._native import TcpTransport
from holdfast.errors import UnavailableError
from holdfast.launch.environment import own_address_to
from holdfast.torch.recover.inner_group import connect_to_store
from holdfast.torch.recover.link import Link

_CONNECT = 20.0  # seconds
_LOOK = 0.005  # seconds between two looks at the store


def meet(link: Link, generation: int) -> TcpTransport:
    """A transport between all ranks of the generation.

    UnavailableError if the launcher begins a newer generation meanwhile.
    """
    store = dist.PrefixStore(f"holdfast/{link.incarnation}.{generation}",
                             connect_to_store(timedelta(seconds=_CONNECT)))
    transport = TcpTransport(link.rank, link.world, token=_token(link, generation),
                             host=_own_address(link))
    store.set(f"address/{link.rank}", transport.address)
    keys = [f"address/{rank}" for rank in range(link.world)]
    while not store.check(keys):
        if link.is_stale(generation):
            raise UnavailableError("a rank was lost while ranks met again")
        time.sleep(_LOOK)
    transport.connect([store.get(key).decode() for key in keys], _CONNECT)
    link.say("met", generation=generation)
    return transport


def _own_address(link: Link) -> str:
    if len(set(link.hosts)) == 1:
        return "127.0.0.1"
    return os.environ.get("HOLDFAST_HOST") or own_address_to(os.environ["MASTER_ADDR"])


def _token(link: Link, generation: int) -> bytes:
    """What the ranks of a generation prove to each other to know.

    A process of an older generation does not know it, so it cannot disturb this one.
    """
    text = f"{os.environ['HOLDFAST_LAUNCH_ID']}/{link.incarnation}/{generation}"
    return hashlib.sha256(text.encode()).digest()

