"""Messages between the launcher and its workers: JSON objects, one in a line, over a socket pair.

    from a worker                                  from the launcher
    resumed    where its training begins           lost      ranks died: a new generation begins
    committed  it has made an update, the first    decided   what all ranks do about their update,
               of its generation                             and whether they leave after it
    started    a replacement waits to be filled    event     one for the run's event log
    at         where it is in its update
    met        it is connected to all ranks
    joined     it is whole, and goes on
    restart    it cannot go on: all must restart
    failed     the exception that ends it
    plain      a lost rank cannot be replaced
               from now on, and why
    cut_off    it has lost its connection to
               another rank, and waits to hear why
    saved      the last step is durable, and all
               ranks end, as they were asked to
    closed     its Checkpointer was closed
    unsaved    what its checkpoints do not have

Launchers of several hosts talk to each other in the same way, over TCP (hosts.py).
"""

import contextlib
import json
import socket
from typing import Any

_MOST = 1 << 16  # bytes that are read at once


def send(connection: socket.socket, **message: Any) -> None:
    """Sends a message. OSError if the other side is gone."""
    connection.sendall(json.dumps(message).encode() + b"\n")


class Sender:
    """Sends messages without waiting: one host that does not read must not stop the launcher."""

    def __init__(self, connection: socket.socket) -> None:
        """The connection does not block."""
        self._connection = connection
        self._waiting = bytearray()

    @property
    def is_idle(self) -> bool:
        """True if all is sent, as far as this host knows."""
        return not self._waiting

    def put(self, message: dict[str, Any]) -> None:
        """Sends a message, or as much of it as the network takes now; flush() sends the rest."""
        self._waiting += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Sends what waits, as far as possible. OSError if the other side is gone."""
        with contextlib.suppress(BlockingIOError):
            while self._waiting:
                del self._waiting[:self._connection.send(self._waiting[:_MOST])]


class Reader:
    """Reads the messages of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._parts: list[bytes] = []  # of a line whose end has not come yet
        self.waiting = 0  # bytes of it

    def read(self) -> list[dict[str, Any]] | None:
        """The messages that have arrived; waits for bytes. None at the end of the connection."""
        try:
            data = self._connection.recv(_MOST)
            return self._take(data) if data else None
        except BlockingIOError:
            return []
        except (OSError, ValueError, RecursionError):
            return None

    def _take(self, data: bytes) -> list[dict[str, Any]]:
        *ends, rest = data.split(b"\n")
        lines = [b"".join((*self._parts, ends[0])), *ends[1:]] if ends else []
        if ends:
            self._parts = []
        self._parts.append(rest)
        self.waiting = len(rest) if ends else self.waiting + len(rest)
        return [json.loads(line) for line in lines]
