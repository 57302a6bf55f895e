"""Messages between the launcher and its workers: JSON objects, one in a line, over a socket pair.

    from a worker                                  from the launcher
    resumed    where its training begins           lost      ranks died: a new generation begins
    committed  it has made an update, the first    decided   what all ranks do about their update,
               of its generation                             and whether they leave after it
    reached    a replacement waits to be filled,   event     one for the run's event log
               has loaded a checkpoint, or makes   wait      why it is cut off cannot be said yet
               a step again
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
    change     about a change of the               change    a change of the configuration begins
               configuration (changes.py)          change_committed, can_change, cannot_change
                                              wish      more workers could run: rank 0 may ask
    unsaved    what its checkpoints do not have
    helps      how many processes would share
               the steps of its replacement, or
               (alone) that it needs none of them

Launchers of several hosts talk to each other in the same way, over TCP (hosts.py). Their connection may
break and be made again, so their messages are numbered (Courier).
"""

import contextlib
import json
import socket
from collections import deque
from typing import Any

_MOST = 1 << 16  # bytes that are read at once


def send(connection: socket.socket, **message: Any) -> None:
    """Sends a message. OSError if the other side is gone."""
    connection.sendall(_line(message))


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

    def put(self, line: bytes) -> None:
        """Sends a line, or as much of it as the network takes now; flush() sends the rest."""
        self._waiting += line
        self.flush()

    def flush(self) -> None:
        """Sends what waits, as far as possible. OSError if the other side is gone."""
        with contextlib.suppress(BlockingIOError):
            while self._waiting:
                del self._waiting[:self._connection.send(self._waiting[:_MOST])]


class Courier:
    """Talks to another launcher, over one connection after another: no message is lost or comes twice.

    A message is kept until the other side has said that it has it, and is sent again if the connection
    was made again before that.
    """

    def __init__(self) -> None:
        self._sender: Sender | None = None  # None while there is no connection
        self._kept: deque[tuple[int, bytes]] = deque()  # messages with their numbers
        self._number = 0  # of the newest message
        self.got = 0  # the number of the newest message of the other side
        self.is_broken = False  # the connection has failed

    def attach(self, connection: socket.socket, got: int) -> None:
        """Goes on with a connection that does not block; the other side has `got` messages."""
        self._forget(got)
        self._sender, self.is_broken = Sender(connection), False
        for _, line in self._kept:
            self._send(line)

    def detach(self) -> None:
        """There is no connection any more."""
        self._sender = None

    def put(self, message: dict[str, Any]) -> None:
        """Sends a message, at once or as soon as there is a connection."""
        self._number += 1
        line = _line({**message, "n": self._number})
        self._kept.append((self._number, line))
        self._send(line)

    def beat(self, message: dict[str, Any]) -> None:
        """Sends what waits, or else a message that is worth nothing later."""
        if self._sender is not None:
            self._send(_line({**message, "got": self.got}) if self._sender.is_idle else b"")

    def take(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of the messages that came that are new."""
        new = []
        for message in messages:
            self._forget(message.pop("got", 0))
            number = message.pop("n", None)
            if number is None or number > self.got:
                self.got = self.got if number is None else number
                new.append(message)
        return new

    def _forget(self, got: int) -> None:
        while self._kept and self._kept[0][0] <= got:
            self._kept.popleft()

    def _send(self, line: bytes) -> None:
        if self._sender is not None:
            try:
                self._sender.put(line)
            except OSError:
                self.is_broken = True  # the next tick finds it


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


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
