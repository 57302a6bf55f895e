"""A transport of Holdfast's own between the ranks of a torch.distributed job.

Background threads send votes and decisions over it. So they neither wait for the job's own
collective calls nor disturb their order, and they notice a dead peer at once.
"""

import contextlib
import logging
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

from holdfast._native import TcpTransport
from holdfast.errors import Error, UnavailableError

_TOKEN_BYTES = 32
_LATE = 8.0  # seconds after which a rank warns that it waits for others

_NAMED = 5  # ranks in a warning

_log = logging.getLogger("holdfast")

_connects = 0  # calls of connect() so far; the same number on all ranks
_open: "weakref.WeakSet[TcpTransport]" = weakref.WeakSet()


def connect(
    group: dist.ProcessGroup | None = None, *, host: str | None = None, timeout: float = 120.0
) -> TcpTransport | None:
    """A transport between the ranks of `group`, or of the whole job; None for one rank.

    All ranks of the group call it, as a collective call. `host` is the name or address by which
    the others reach this machine. If it is not given, HOLDFAST_HOST of the environment is used,
    and else loopback if all ranks share one machine, or the address that leads to MASTER_ADDR.
    Fails on all ranks alike if one rank cannot listen, and with TimeoutError or UnavailableError
    if one does not connect within `timeout` seconds.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1:
        return None
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ValueError("connect: this process is not in the group; expected a call by the "
                         "ranks of the group")
    with _warn_if_late(rank, group):
        met = _all_gather((_machine(), secrets.token_bytes(_TOKEN_BYTES)), group)
    together = all(machine == met[0][0] for machine, _ in met)
    transport, failure = None, ""
    try:
        transport = TcpTransport(rank, size, token=met[0][1], host=_host(host, together))
    except (Error, OSError, ValueError) as error:
        failure = str(error)  # raised below: the other ranks must hear of it first
    told = _all_gather((transport.address if transport else "", failure), group)
    for other, (_, why) in enumerate(told):
        if why:
            raise UnavailableError(f"connect: rank {other} cannot listen: {why}")
    assert transport is not None
    transport.connect([address for address, _ in told], timeout)
    _open.add(transport)
    return transport


@contextlib.contextmanager
def _warn_if_late(rank: int, group: dist.ProcessGroup | None) -> Iterator[None]:
    """Warns if other ranks do not come: this one waits for as long as the process group does."""
    global _connects
    _connects += 1
    here = f"holdfast/connect {_connects}/rank "
    store = _store()
    if store is not None:
        store.set(f"{here}{dist.get_rank()}", "here")
    said = threading.Timer(_LATE, lambda: _log.warning(
        "rank %d has waited for %.0f s for %s to connect: expected a Checkpointer on all of the "
        "%d ranks; one that compiles or loads for long may also be late", rank, _LATE,
        _missing(store, here, group), dist.get_world_size(group)))
    said.daemon = True
    said.start()
    try:
        yield
    finally:
        said.cancel()


def _store() -> Any:
    """The key-value store of the job, by which ranks say that they are here; None without one."""
    with contextlib.suppress(Exception):  # torch has no public function for it
        return dist.distributed_c10d._get_default_store()
    return None


def _missing(store: Any, here: str, group: dist.ProcessGroup | None) -> str:
    """The ranks of the group that are not here yet, in words."""
    with contextlib.suppress(Exception):
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        missing = [str(index) for index, rank in enumerate(ranks)
                   if not store.check([f"{here}{rank}"])]
        if missing:
            shown = ", ".join(missing[:_NAMED]) + (", ..." if len(missing) > _NAMED else "")
            return f"rank{'s' if len(missing) > 1 else ''} {shown}"
    return "the other ranks"


def _all_gather(value: tuple, group: dist.ProcessGroup | None) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group)
    return values


def _machine() -> tuple[str, str]:
    """Equal for processes that reach each other by loopback."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, os.readlink("/proc/self/ns/net")
    except OSError:
        return socket.gethostname(), ""


def _host(host: str | None, together: bool) -> str:
    host = host or os.environ.get("HOLDFAST_HOST")
    if host:
        return host
    if together:
        return "127.0.0.1"
    return _way_to(os.environ.get("MASTER_ADDR", ""))


def _way_to(master: str) -> str:
    """The address of this machine that leads to `master`; empty if there is none of use."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            own = probe.getsockname()[0]
    except OSError:
        return ""
    return "" if own.startswith("127.") or own == "::1" else own


def _let_go_in_child() -> None:
    for transport in list(_open):
        transport.let_go_in_child()


# Workers of a data loader are forked. They may outlive their parent, and would keep its
# connections open.
os.register_at_fork(after_in_child=_let_go_in_child)
