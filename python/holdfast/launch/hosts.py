"""The hosts of a job, as the launcher that decides sees them.

Host 0 is its own. The launchers of the others connect to it, and prove that they know the same
token: each side answers a random number of the other with a code that only the token can make.
Then they carry out commands and send reports (processes.py), and each side hears of the other
several times a second.
"""

import contextlib
import hmac
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from holdfast.launch.loop import Awake, Loop
from holdfast.launch.messages import Reader, Sender, send
from holdfast.launch.processes import SILENCE, Workers

_GREETING = 5.0  # seconds for a connection to say what it is
_LONGEST_GREETING = 4096  # bytes


def token(at: str) -> bytes:
    """What all launchers of a job know, and others do not if HOLDFAST_LAUNCH_TOKEN is set."""
    known = [os.environ.get(name, "") for name in ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID",
                                                   "SLURM_RESTART_COUNT")]
    given = os.environ.get("HOLDFAST_LAUNCH_TOKEN")
    return sha256(f"{given or [at, *known]}".encode()).digest()


def proof(secret: bytes, number: str, side: str) -> str:
    """Shows that this side knows the token; `number` is the other side's."""
    return hmac.new(secret, f"{side} {number}".encode(), sha256).hexdigest()


@dataclass(eq=False)
class Host:
    """A host whose launcher lives."""

    number: int | None  # None: a spare that has no place yet
    ranks: int
    do: Callable[[dict[str, Any]], None]
    # How long a rank has waited in a collective call, with the serial number of its process.
    waits: dict[int, tuple[int, float | None]] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)  # by rank
    heard: float = 0.0  # when its launcher was last heard of
    connection: socket.socket | None = None  # None for this host
    sender: Sender | None = None
    is_broken: bool = False  # nothing can be sent to it any more

    def hear(self, report: dict[str, Any]) -> None:
        """Notes what every report shows."""
        self.heard = time.monotonic()
        if report["say"] == "alive":
            self.waits = {int(rank): tuple(waits) for rank, waits in report["waits"].items()}
            self.steps |= {int(rank): step for rank, step in report["steps"].items()}


class Hosts:
    """All hosts. `job` hears of what happens: report(), host_came() and host_lost()."""

    def __init__(self, number: int, at: str, door: socket.socket | None, loop: Loop,
                 job: Any) -> None:
        self.number = number
        self.living: dict[int, Host] = {}
        self.spares: list[Host] = []
        self._loop, self._job = loop, job
        self._token = token(at)
        self._awake = Awake()
        self._guests: dict[socket.socket, tuple[float, str]] = {}  # since when, and their number
        if door is not None:
            loop.watch(door, lambda: self._greet(door))

    def add_own(self, workers: Workers, ranks: int) -> None:
        """Makes this host part of the job."""
        self.living[0] = Host(0, ranks, workers.do)

    @property
    def missing(self) -> list[int]:
        """The numbers of hosts that are not there."""
        return [number for number in range(self.number) if number not in self.living]

    def do_all(self, command: dict[str, Any]) -> None:
        """A command for all hosts."""
        for host in [*self.living.values(), *self.spares]:
            host.do(command)

    def end(self, code: int) -> None:
        """Tells the other launchers how the job has ended."""
        for host in [*self.living.values(), *self.spares]:
            if host.connection is not None:
                host.do({"do": "end", "code": code})
                host.connection.setblocking(True)
                host.connection.settimeout(SILENCE)
                self._send(host, None)  # what still waits

    def beat(self) -> None:
        """Says that this launcher lives."""
        for host in [*self.living.values(), *self.spares]:
            if host.sender is not None:
                self._send(host, {"do": "alive"} if host.sender.is_idle else None)

    def tick(self) -> None:
        """Called often: says that this launcher lives, and finds the hosts that do not."""
        self.beat()
        now = time.monotonic()
        self._awake.tick(now)
        for host in [*self.living.values(), *self.spares]:
            if host.is_broken:
                self._lose(host, "its launcher has ended")
            elif host.connection is not None \
                    and now - max(host.heard, self._awake.since) > SILENCE:
                self._lose(host, f"no sign of life for {SILENCE:.0f} s")
        for guest, (since, _) in list(self._guests.items()):
            if now - since > _GREETING:
                self._dismiss(guest)

    def fill_places(self, ranks_of: Callable[[int], int | None]) -> None:
        """Gives spares the places of missing hosts that have as many ranks."""
        for number in self.missing:
            for spare in self.spares:
                if spare.ranks == ranks_of(number):
                    self.spares.remove(spare)
                    spare.number, self.living[number] = number, spare
                    break

    # Guests

    def _greet(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            guest, _ = listener.accept()
            guest.setblocking(False)
            guest.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number, reader = secrets.token_hex(16), Reader(guest)
            self._guests[guest] = time.monotonic(), number
            self._loop.watch(guest, lambda: self._hear_guest(guest, reader))
            send(guest, number=number)

    def _hear_guest(self, guest: socket.socket, reader: Reader) -> None:
        messages = reader.read()
        if messages is None or reader.waiting > _LONGEST_GREETING:
            return self._dismiss(guest)
        if messages and (why := self._why_not(guest, messages[0])):
            with contextlib.suppress(OSError):
                send(guest, do="refuse", why=why[0], again=why[1])
            return self._dismiss(guest)
        if messages:
            self._admit(guest, reader, messages[0])

    def _why_not(self, guest: socket.socket, hello: dict[str, Any]) -> tuple[str, bool] | None:
        """Why a guest is not admitted, and whether it may ask again later."""
        expected = proof(self._token, self._guests[guest][1], "host")
        if not isinstance(hello, dict) or not hmac.compare_digest(str(hello.get("proof", "")).encode(), expected.encode()):
            return "another token; expected the same HOLDFAST_LAUNCH_TOKEN on all hosts", False
        number = hello.get("host")
        if number is None:
            return None
        if not 0 < number < self.number:
            return f"host {number}; expected 1 to {self.number - 1}, or spare", False
        if number in self.living:
            return f"host {number} is there already", True
        ranks = self._job.ranks_of(number)
        if ranks is not None and ranks != hello["ranks"]:
            return f"-n {hello['ranks']}; expected {ranks} as on the lost host {number}", False
        return None

    def _admit(self, guest: socket.socket, reader: Reader, hello: dict[str, Any]) -> None:
        del self._guests[guest]
        host = Host(None, hello["ranks"], lambda command: self._send(host, command),
                    heard=time.monotonic(), connection=guest, sender=Sender(guest))
        self._loop.watch(guest, lambda: self._hear(host, reader))
        host.do({"do": "welcome", "proof": proof(self._token, hello["number"], "coordinator")})
        if hello.get("host") is None:
            self.spares.append(host)
        else:
            host.number, self.living[hello["host"]] = hello["host"], host
        self._job.host_came(host)

    def _dismiss(self, guest: socket.socket) -> None:
        self._guests.pop(guest, None)
        self._loop.close(guest)

    # Talking to hosts

    def _send(self, host: Host, command: dict[str, Any] | None) -> None:
        try:
            assert host.sender is not None
            host.sender.flush() if command is None else host.sender.put(command)
        except OSError:
            host.is_broken = True  # the next tick finds it lost

    def _hear(self, host: Host, reader: Reader) -> None:
        messages = reader.read()
        if messages is None:
            return self._lose(host, "its launcher has ended")
        for message in messages:
            host.hear(message)
            self._job.report(host, message)

    def _lose(self, host: Host, why: str) -> None:
        assert host.connection is not None
        self._loop.close(host.connection)
        if host in self.spares:
            self.spares.remove(host)
        elif self.living.get(host.number or 0) is host:
            del self.living[host.number or 0]
            self._job.host_lost(host, why)
