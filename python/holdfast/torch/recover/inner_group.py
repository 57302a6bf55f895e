"""Makes the process groups of torch that carry collective calls, and cuts their connections."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from holdfast.errors import UnavailableError

_LOOK = 0.05  # seconds between two looks whether to go on waiting


def connect_to_store(timeout: timedelta) -> Any:
    """A new connection to the store of the job, which the launcher keeps."""
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]),
                         is_master=False, timeout=timeout)


class SharedConnection:
    """The connection to the store with which this process makes groups and meets other ranks.

    There is one for many groups, because torch asks for the name of the other end when it connects: with
    a name server that is slow or loses queries, each connection may take seconds.
    """

    def __init__(self) -> None:
        self._store: Any = None
        self._sockets: set[tuple[int, str]] = set()
        self._of = 0  # the process that has made it

    def to_store(self, timeout: timedelta) -> Any:
        """The store, with this timeout from now on."""
        if self._store is None or self._of != os.getpid():
            before = open_sockets()
            self._store, self._of = connect_to_store(timeout), os.getpid()
            self._sockets = {one for one in open_sockets() - before if _leads_to_store(one[0])}
        self._store.set_timeout(timeout)
        return self._store

    def cut(self) -> None:
        """Ends it: a thread that still waits in an attempt which has failed would block all others."""
        if self._of == os.getpid():
            cut_sockets(self._sockets)
        self._store, self._sockets = None, set()


shared = SharedConnection()


def _leads_to_store(descriptor: int) -> bool:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
        return bool(one.getpeername()[1] == int(os.environ["MASTER_PORT"]))
    return False


def wait_for(make: Callable[[], Any], is_stale: Callable[[], bool]) -> Any:
    """Calls `make` in a thread of its own, because nothing can interrupt it. Returns its result."""
    made: list[Any] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            made.append(make())
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK)
        if is_stale():
            raise UnavailableError("a rank was lost while ranks connected to each other")
    if failed:
        raise failed.pop()  # an error in a list of its own frame would keep that frame and its connections
    return made[0]


def make_inner(wanted: str, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """A plain process group of torch with the backends that the program named."""
    group = dist.ProcessGroup(store, rank, size)
    made: dict[str, tuple[Any, Any]] = {}
    for device, backend in c10d.BackendConfig(dist.Backend(wanted)).get_device_backend_map().items():
        if device != "cpu" and not torch.cuda.is_available():
            continue
        if backend not in made:
            made[backend] = _make_backend(backend, dist.PrefixStore(backend, store), rank, size,
                                          timeout)
        group._register_backend(torch.device(device), *made[backend])
    group._set_default_backend(next(reversed(made.values()))[0])
    return group


def _make_backend(name: str, store: Any, rank: int, size: int, timeout: timedelta) -> tuple[Any, Any]:
    kinds = dist.ProcessGroup.BackendType
    if name == "gloo":
        made = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    elif name == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        made = dist.ProcessGroupNCCL(store, rank, size, options)
    else:
        raise ValueError(f"backend {name}: not known to holdfast launch; expected gloo or nccl, or "
                         "Checkpointer(recover=False) and torchrun")
    made._set_sequence_number_for_group()
    return (kinds.GLOO if name == "gloo" else kinds.NCCL), made


def open_sockets() -> set[tuple[int, str]]:
    """The sockets of this process: descriptors, and names that tell whether they are the same."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/self/fd/{name}")
            if link.startswith("socket:"):
                found.add((int(name), link))
    return found


def cut_sockets(sockets: set[tuple[int, str]]) -> None:
    """Shuts those of them down that are still open and are connected."""
    for descriptor, _ in sockets & open_sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
            # To touch a listening socket aborts the process.
            if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                one.getpeername()
                one.shutdown(socket.SHUT_RDWR)
