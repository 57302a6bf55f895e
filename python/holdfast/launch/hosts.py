"""The hosts of a job, as the launcher that decides sees them.

Host 0 is its own. The launchers of the others connect to it, and prove that they know the same
token: each side answers a random number of the other with a code that only the token can make.
Then they carry out commands and send reports (processes.py), and each side hears of the other
several times a second.

A connection may be cut. Then the host is away: its launcher makes the connection again, the ranks of the
host go on meanwhile, and both sides send what the other has not got. A host that stays away is lost with
its ranks: at once if its own ranks have said that its launcher is dead, or if a spare can take its place;
when a new launcher comes for it; and otherwise after --wait.
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
from holdfast.launch.messages import Courier, Reader, send
from holdfast.launch.processes import SILENCE, Workers
from holdfast.launch.recoveries import say

_GREETING = 5.0  # seconds for a connection to say what it is
_LONGEST_GREETING = 4096  # bytes
_TO_RETURN = 1.0  # seconds to make a connection again that has ended, if a spare waits for the place


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
    came: float = field(default_factory=time.monotonic)  # when its launcher came
    connection: socket.socket | None = None  # None for this host, and while it is away
    courier: Courier | None = None  # None for this host
    session: str = ""  # its launcher has this name of its own
    away_since: float | None = None  # since when there is no connection to it
    why_away: str = ""

    def hear(self, report: dict[str, Any]) -> None:
        """Notes what every report shows."""
        self.heard = time.monotonic()
        if report["say"] == "alive":
            self.waits = {int(rank): tuple(waits) for rank, waits in report["waits"].items()}
            self.steps |= {int(rank): step for rank, step in report["steps"].items()}


class Hosts:
    """All hosts. `job` hears of what happens: report(), host_came() and host_lost()."""

    def __init__(self, number: int, at: str, listener: socket.socket | None, loop: Loop,
                 job: Any) -> None:
        self.number = number
        self.patience = 0.0  # for how many seconds a host may be away
        self.living: dict[int, Host] = {}
        self.spares: list[Host] = []
        self._loop, self._job = loop, job
        self._token = token(at)
        self._awake = Awake()
        self._guests: dict[socket.socket, tuple[float, str]] = {}  # since when, and their number
        self._absent: dict[int, float] = {}  # since when a lost host was not there
        if listener is not None:
            loop.watch(listener, lambda: self._greet(listener))

    def add_own(self, workers: Workers, ranks: int) -> None:
        """Makes this host part of the job."""
        self.living[0] = Host(0, ranks, workers.do)

    @property
    def missing(self) -> list[int]:
        """The numbers of hosts that are not there."""
        return [number for number in range(self.number) if number not in self.living]

    @property
    def names_of_missing(self) -> str:
        """What a message calls them."""
        return ", ".join(f"host {number}" for number in self.missing)

    @property
    def absent_since(self) -> float:
        """Since when hosts have been missing."""
        return min((self._absent.get(number, time.monotonic()) for number in self.missing),
                   default=time.monotonic())

    @property
    def is_any_away(self) -> bool:
        return any(host.away_since is not None for host in self.living.values())

    def do_all(self, command: dict[str, Any]) -> None:
        """A command for all hosts."""
        for host in [*self.living.values(), *self.spares]:
            host.do(command)

    def end(self, code: int) -> None:
        """Tells the other launchers how the job has ended."""
        for host in [*self.living.values(), *self.spares]:
            if host.connection is not None:
                host.connection.setblocking(True)
                host.connection.settimeout(SILENCE)
                host.do({"do": "end", "code": code})  # with what still waits

    def beat(self) -> None:
        """Says that this launcher lives."""
        for host in [*self.living.values(), *self.spares]:
            if host.courier is not None:
                host.courier.beat({"do": "alive"})

    def tick(self) -> None:
        """Called often: says that this launcher lives, and finds the hosts that do not."""
        self.beat()
        now = time.monotonic()
        self._awake.tick(now)
        for host in [*self.living.values(), *self.spares]:
            if host.away_since is not None:
                if now > self._deadline(host):
                    self._lose(host)
            elif host.courier is not None and host.courier.is_broken:
                self._cut(host, "its launcher has ended")
            elif host.connection is not None \
                    and now - max(host.heard, self._awake.since) > SILENCE:
                self._cut(host, f"no sign of life for {SILENCE:.0f} s", since=host.heard)
        for guest, (since, _) in list(self._guests.items()):
            if now - since > _GREETING:
                self._dismiss(guest)

    def hurry(self) -> None:
        """A stop signal has come: the ranks must save soon, with the hosts that are there."""
        self.patience = min(self.patience, SILENCE)

    def fill_places(self, ranks_of: Callable[[int], int | None]) -> None:
        """Gives spares the places of missing hosts that have as many ranks, or none any more."""
        for number in self.missing:
            for spare in self.spares:
                if ranks_of(number) in (None, spare.ranks):
                    self._absent.pop(number, None)
                    self.spares.remove(spare)
                    spare.number, self.living[number] = number, spare
                    break

    def take_spare(self) -> Host | None:
        """Makes a spare one more host of the job, which then has more hosts; None if there is no spare."""
        if not self.spares:
            return None
        spare = self.spares.pop(0)
        spare.number, self.number = self.number, self.number + 1
        self.living[spare.number] = spare
        return spare

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
        if number is None or self._returning(hello) is not None:
            return None
        if not 0 < number < self.number:
            return f"host {number}; expected 1 to {self.number - 1}, or spare", False
        there = self.living.get(number)
        if there is not None and hello.get("returns"):
            return f"another host has the place of host {number}", False
        if there is not None and there.away_since is None:
            return f"host {number} is there already", True
        ranks = self._job.ranks_of(number)
        if ranks is not None and ranks != hello["ranks"]:
            return f"-n {hello['ranks']}; expected {ranks} as on the lost host {number}", False
        return None

    def _returning(self, hello: dict[str, Any]) -> Host | None:
        """The host whose launcher was here before, with the same processes."""
        return next((host for host in self.living.values()
                     if host.session and host.session == hello.get("session")), None)

    def _admit(self, guest: socket.socket, reader: Reader, hello: dict[str, Any]) -> None:
        del self._guests[guest]
        returning = self._returning(hello)
        host = returning or self._make_host(hello)
        if host.connection is not None:  # the other side has seen first that it was cut
            self._loop.close(host.connection)
        host.connection, host.heard, host.away_since = guest, time.monotonic(), None
        assert host.courier is not None
        with contextlib.suppress(OSError):  # the next tick finds it
            send(guest, do="welcome", proof=proof(self._token, hello["number"], "coordinator"),
                 got=host.courier.got, is_new=returning is None)
        self._loop.watch(guest, lambda: self._hear(host, reader))
        host.courier.attach(guest, hello.get("got", 0) if returning else 0)
        if returning:
            return say(f"host {host.number}: its launcher is connected again")
        self._job.host_came(host)

    def _make_host(self, hello: dict[str, Any]) -> Host:
        courier, number = Courier(), hello.get("host")
        host = Host(number, hello["ranks"], courier.put, courier=courier,
                    session=str(hello.get("session", "")))
        if number is None:
            self.spares.append(host)
            return host
        if number in self.living:  # it is away, and this is another launcher
            self._lose(self.living[number])
        self._absent.pop(number, None)
        self.living[number] = host
        return host

    def _dismiss(self, guest: socket.socket) -> None:
        self._guests.pop(guest, None)
        self._loop.close(guest)

    # Talking to hosts

    def _hear(self, host: Host, reader: Reader) -> None:
        messages = reader.read()
        if messages is None:
            return self._cut(host, "its launcher has ended")
        assert host.courier is not None
        for message in host.courier.take(messages):
            host.hear(message)
            self._job.report(host, message)

    def _cut(self, host: Host, why: str, since: float | None = None) -> None:
        """There is no connection to the host any more; `since` if it has been of no use for longer."""
        assert host.connection is not None and host.courier is not None
        self._loop.close(host.connection)
        host.courier.detach()
        host.connection, host.why_away = None, why
        host.away_since = time.monotonic() if since is None else since
        if host in self.spares:
            self.spares.remove(host)
        elif (left := self._deadline(host) - time.monotonic()) <= 0:
            self._lose(host)
        else:
            say(f"host {host.number}: {why}, or its connection is cut: waits up to {left:.0f} s for it")

    def _deadline(self, host: Host) -> float:
        """Until when a host may be away."""
        assert host.away_since is not None
        came = [spare.came for spare in self.spares if spare.ranks == host.ranks]
        soon = [max(host.away_since, min(came)) + _TO_RETURN] if came else []
        return min([host.away_since + self.patience, *soon])

    def launcher_died(self, host: Host) -> None:
        """Ranks of the host have said that its launcher is dead."""
        if self.living.get(host.number or 0) is host and host.courier is not None:
            if host.away_since is None:
                host.away_since, host.why_away = time.monotonic(), "its launcher has ended"
            self._lose(host)

    def _lose(self, host: Host) -> None:
        if host.connection is not None:
            self._loop.close(host.connection)
            host.connection = None
        assert host.number is not None and host.away_since is not None
        self._absent[host.number] = host.away_since
        del self.living[host.number]
        self._job.host_lost(host, host.why_away)
