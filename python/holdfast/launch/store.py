"""The key-value store of the job, in a process of its own: it starts threads, and must not die
with a rank."""

import contextlib
import json
import os
import select
import signal
import socket
import struct
from typing import Any

# Ranks whose launcher has died say so there, in texts with the numbers 1, 2, ... behind it.
ORPHANS = "holdfast/orphans"

_LOOK = 0.2  # seconds between two looks for such texts


class StoreProcess:
    """Made before the first worker. It ends with the launcher, or, if that was killed, with the
    last worker: workers that save after that may need it."""

    def __init__(self, listener: socket.socket | None, has_other_hosts: bool) -> None:
        """`listener` is a socket of the launcher, which must end with it."""
        self.orphans, write = os.pipe()  # becomes readable when ranks of other hosts have no launcher
        theirs, self._alive = os.pipe()  # the store reads the end of this pipe: its last holder's
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self.orphans)
            os.close(self._alive)
            if listener is not None:
                listener.close()
            _serve(write, theirs, has_other_hosts)
        os.close(write)
        os.close(theirs)
        data = os.read(self.orphans, 4)
        if len(data) < 4:
            raise OSError("launch: the store did not start; expected a free port")
        (self.port,) = struct.unpack("<I", data)
        self.ended = os.pidfd_open(self._pid)  # becomes readable when the store has ended

    def read_orphans(self) -> list[dict[str, Any]]:
        """The ranks that have said that their launcher has died, with their process ids."""
        return [json.loads(line) for line in os.read(self.orphans, 1 << 16).splitlines()]

    def close(self) -> None:
        """Ends the store."""
        os.close(self._alive)
        with contextlib.suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _serve(write: int, alive: int, has_other_hosts: bool) -> None:
    code = 1
    try:
        os.setsid()
        # torch asks a name server who connects, waits for its answer before it serves others, and warns
        # if there is none.
        os.environ["RES_OPTIONS"] = "attempts:0"
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        import torch.distributed as dist

        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(write, struct.pack("<I", store.port))
        _pass_on_orphans(store, write, alive) if has_other_hosts else os.read(alive, 1)
        code = 0
    finally:
        os._exit(code)


def _pass_on_orphans(store: Any, write: int, alive: int) -> None:
    """Returns when nobody holds the other end of the pipe `alive`."""
    number = 1
    while not select.select([alive], [], [], _LOOK)[0]:
        while store.check([f"{ORPHANS}/{number}"]):
            with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
                told = json.loads(store.get(f"{ORPHANS}/{number}"))
                text = json.dumps({"rank": int(told["rank"]), "pid": int(told["pid"])})
                os.write(write, text.encode() + b"\n")
            number += 1
