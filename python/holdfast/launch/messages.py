"""Messages between the launcher and its workers: JSON objects, one in a line, over a socket pair.

    from a worker                                  from the launcher
    running    its first update is committed       lost      ranks died: a new generation begins
    started    a replacement waits to be filled    decided   what all ranks do about their update
    at         where it is in its update
    joined     it is whole, and goes on
    restart    it cannot go on: all must restart
"""

import json
import socket
from typing import Any

_MOST = 1 << 16  # bytes that are read at once


def send(connection: socket.socket, **message: Any) -> None:
    """Sends a message. OSError if the other side is gone."""
    connection.sendall(json.dumps(message).encode() + b"\n")


class Reader:
    """Reads the messages of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""

    def read(self) -> list[dict[str, Any]] | None:
        """The messages that have arrived; waits for bytes. None at the end of the connection."""
        try:
            data = self._connection.recv(_MOST)
        except OSError:
            return None
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]
