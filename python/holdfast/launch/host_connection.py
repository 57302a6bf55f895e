"""How the launcher of another host connects to that of host 0 (hosts.py), also again after the connection
was cut."""

import hmac
import os
import secrets
import select
import socket
import time
from typing import Any

from holdfast.launch.hosts import proof
from holdfast.launch.listener import LOOK, Refused, no_answer
from holdfast.launch.messages import Reader, send
from holdfast.launch.options import Options
from holdfast.launch.processes import SILENCE

Address = tuple[int, Any]  # the family, and the address of that family


class HostConnection:
    """One attempt to connect to it, which does not block: turn() goes on with it."""

    def __init__(self, options: Options, secret: bytes, hello: dict[str, Any], address: Address) -> None:
        """`hello` is what this launcher says of itself."""
        self._options, self._secret, self._hello = options, secret, hello
        self._number = secrets.token_hex(16)
        self._until = time.monotonic() + SILENCE
        self._next = self._connected
        self.why = ""  # it has failed, and why
        self.is_refused = False  # nobody listens there
        self.welcome: dict[str, Any] | None = None  # it has not failed, and this was answered
        self.early: list[dict[str, Any]] = []  # commands that came together with the welcome
        self.connection = socket.socket(address[0], socket.SOCK_STREAM)
        self.connection.setblocking(False)
        self.reader = Reader(self.connection)
        self.connection.connect_ex(address[1])

    @property
    def is_over(self) -> bool:
        return bool(self.why) or self.welcome is not None

    def turn(self, seconds: float) -> None:
        """Goes on, and waits for some seconds at most. Refused if the other launcher says no."""
        is_connecting = self._next == self._connected
        ready = select.select([] if is_connecting else [self.connection],
                              [self.connection] if is_connecting else [], [], seconds)
        try:
            if ready[0] or ready[1]:
                self._next()
            elif time.monotonic() > self._until:
                self.fail("no answer")
        except OSError as error:
            self.fail(error.strerror or str(error))
        except (LookupError, TypeError, AttributeError):
            self.fail("no answer of a launcher")

    def fail(self, why: str) -> None:
        """Ends the attempt."""
        self.why = why
        self.connection.close()

    def _connected(self) -> None:
        if code := self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.is_refused = isinstance(OSError(code, ""), ConnectionRefusedError)
            return self.fail(os.strerror(code))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next = self._greeted

    def _greeted(self) -> None:
        if messages := self._read():
            send(self.connection, **self._hello, number=self._number,
                 proof=proof(self._secret, messages[0]["number"], "host"))
            self._next = self._answered

    def _answered(self) -> None:
        messages = self._read()
        if not messages:
            return
        # Host 0 begins to give commands as soon as it has sent the welcome.
        answer, *self.early = messages
        if answer["do"] == "refuse":
            if not answer["again"]:
                raise Refused(f"--at {self._options.at_text}: refused: {answer['why']}")
            return self.fail(str(answer["why"]))
        expected = proof(self._secret, self._number, "coordinator")
        if not hmac.compare_digest(answer["proof"].encode(), expected.encode()):
            raise Refused(f"--at {self._options.at_text}: what answers there is no launcher of this job")
        self.welcome = answer

    def _read(self) -> list[dict[str, Any]]:
        messages = self.reader.read()
        if messages is None:
            self.fail("the connection ended")
        return messages or []


def connect_to_first_host(options: Options, secret: bytes, hello: dict[str, Any]) -> HostConnection:
    """Waits for the first connection. Refused if there is no launcher in time, or if it says no."""
    assert options.at is not None
    deadline, tries = time.monotonic() + options.wait, 0
    while True:
        try:
            found = socket.getaddrinfo(*options.at, type=socket.SOCK_STREAM)
            family, _, _, _, address = found[tries % len(found)]
            made = HostConnection(options, secret, hello, (family, address))
            while not made.is_over:
                made.turn(LOOK)
            why, is_last = made.why, tries % len(found) == len(found) - 1
        except OSError as error:
            why, is_last = error.strerror or str(error), True
        if not why:
            return made
        tries += 1
        if is_last:
            if time.monotonic() > deadline:
                raise no_answer(options, why)
            time.sleep(LOOK)
