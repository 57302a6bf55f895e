"""The key-value store of the job, in a process of its own: it starts threads, and must not die
with a rank."""

import contextlib
import os
import signal
import socket
import struct


class StoreProcess:
    """Made before the first worker. It ends with the launcher, or, if that was killed, with the
    last worker: workers that save after that may need it."""

    def __init__(self, door: socket.socket | None) -> None:
        """`door` is a socket of the launcher, which must end with it."""
        read, write = os.pipe()
        theirs, self._alive = os.pipe()  # the store reads the end of this pipe: its last holder's
        self._pid = os.fork()
        if self._pid == 0:
            os.close(read)
            os.close(self._alive)
            if door is not None:
                door.close()
            _serve(write, theirs)
        os.close(write)
        os.close(theirs)
        data = os.read(read, 4)
        os.close(read)
        if len(data) < 4:
            raise OSError("launch: the store did not start; expected a free port")
        (self.port,) = struct.unpack("<I", data)
        self.ended = os.pidfd_open(self._pid)  # becomes readable when the store has ended

    def close(self) -> None:
        """Ends the store."""
        os.close(self._alive)
        with contextlib.suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _serve(write: int, alive: int) -> None:
    code = 1
    try:
        os.setsid()
        import torch.distributed as dist

        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(write, struct.pack("<I", store.port))
        os.close(write)
        os.read(alive, 1)  # returns when nobody holds the other end
        code = 0
    finally:
        os._exit(code)
