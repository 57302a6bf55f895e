"""The launcher of a host that another launcher decides for (hosts.py)."""

import secrets
import signal
import time
from typing import Any

from holdfast.launch.ending import GAVE_UP
from holdfast.launch.host_connection import HostConnection, connect_to_first_host
from holdfast.launch.hosts import token
from holdfast.launch.listener import Refused
from holdfast.launch.loop import Awake, Loop
from holdfast.launch.messages import Courier
from holdfast.launch.options import Options
from holdfast.launch.orphans import Register
from holdfast.launch.printer import Printer
from holdfast.launch.processes import SILENCE, Workers
from holdfast.launch.recoveries import say
from holdfast.launch.worker_identity import STOPPED

_TO_SAVE = 60.0  # seconds for workers to save if only the other launcher has ended
_TO_END = 10.0  # the same if its host is gone, with ranks that a save needs


class Follower:
    """Carries out what the launcher of host 0 decides."""

    def __init__(self, options: Options, register: Register, printer: Printer | None) -> None:
        self._options, self._token = options, token(options.at_text)
        self._session = secrets.token_hex(16)
        self._courier = Courier()
        self._first_host = connect_to_first_host(options, self._token, self._hello())
        self._address = self._first_host.connection.family, self._first_host.connection.getpeername()
        self._again: HostConnection | None = None  # the attempt to make the connection again
        self._loop = Loop(self._on_signal)
        self._workers = Workers(options.program, options.is_module, self._loop, self._report)
        self._workers.beat, self._workers.register = self._beat, register.note
        self._workers.logs, self._workers.printer = options.logs, printer
        self._sent_logs: set[tuple[int, int]] = set()  # by rank and serial number
        self._heard = time.monotonic()
        self._awake = Awake()
        self._away_since: float | None = None  # since when there is no connection
        self._why_away, self._was_refused = "", False  # the second: nobody listens there
        self._is_signalled = False  # a signal has come that the other launcher may not have heard of
        self._codes: dict[int, int | None] = {}  # exit codes by rank; None for a worker that lives
        self._is_saved = False  # a worker has said that the last step is durable
        self._cut_off: set[tuple[int, int]] = set()  # by rank and serial number
        self._ends_at: float | None = None  # when the workers are ended, without their leader
        self._code: int | None = None

    def run(self) -> int:
        """Returns the exit code of the job."""
        try:
            self._begin(self._first_host)
            while self._code is None:
                self._loop.turn()
                self._tick()
            return self._code
        finally:
            self._workers.close()

    def _tick(self) -> None:
        self._workers.tick()
        now = time.monotonic()
        self._awake.tick(now)
        if self._away_since is not None:
            self._have_patience()
            self._reach_again(now)
        elif self._ends_at is None and self._courier.is_broken:
            self._cut("it has ended", now)
        elif self._ends_at is None and now - max(self._heard, self._awake.since) > SILENCE:
            self._cut(f"no sign of life for {SILENCE:.0f} s", self._heard)
        if self._ends_at is not None and (self._workers.is_empty or now > self._ends_at):
            self._code = self._code_alone

    def _have_patience(self) -> None:
        """Has ranks that wait to hear why they are cut off wait on: nobody can tell them now."""
        for rank, serial in self._cut_off:
            self._workers.do({"do": "tell", "rank": rank, "serial": serial, "message": {"say": "wait"}})

    @property
    def _code_alone(self) -> int:
        """The exit code without a leader: STOPPED says that no step is lost."""
        is_saved = self._is_saved or set(self._codes.values()) == {STOPPED}
        return STOPPED if is_saved else GAVE_UP

    def _beat(self) -> None:
        self._courier.beat({"say": "beat"})

    def _on_alone(self) -> None:
        say(f"the launcher of host 0: {self._why_away}: ranks here save if they can, and end")
        self._away_since = None
        self._workers.do({"do": "signal", "number": int(signal.SIGTERM)})
        self._ends_at = time.monotonic() + (_TO_SAVE if self._was_refused else _TO_END)

    def _on_signal(self, number: int) -> None:
        if self._ends_at is not None:
            self._code = self._code_alone
        elif self._away_since is not None and self._is_signalled:
            self._on_alone()
        else:
            self._is_signalled = True
            self._report({"say": "signal", "number": number})

    def _report(self, report: dict[str, Any]) -> None:
        if report["say"] == "message":
            self._note(report["message"]["say"], report["rank"], report["serial"])
        elif report["say"] in ("born", "ended"):
            self._codes[report["rank"]] = report.get("code")
        self._send(report)

    def _note(self, said: str, rank: int, serial: int) -> None:
        if said == "committed":
            self._send_log(rank, serial)
        elif said == "saved":
            self._is_saved = True
        elif said == "cut_off":
            self._cut_off.add((rank, serial))

    def _send_log(self, rank: int, serial: int) -> None:
        """The start of this rank is over: keeps what it heard safe from the loss of this host."""
        if (rank, serial) not in self._sent_logs:
            self._sent_logs.add((rank, serial))
            for part in self._workers.log_of(rank):
                self._send({"say": "log", **part})

    def _send(self, report: dict[str, Any]) -> None:
        if report["say"] in ("alive", "beat"):
            self._courier.beat(report)
        elif self._ends_at is None:
            self._courier.put(report)

    def _hear(self, first_host: HostConnection) -> None:
        messages = first_host.reader.read()
        if messages is None:
            return self._cut("it has ended", time.monotonic())
        self._heard = time.monotonic()
        self._obey(messages)

    def _obey(self, messages: list[dict[str, Any]]) -> None:
        for message in self._courier.take(messages):
            if message["do"] == "end":
                self._code = message["code"]
            elif message["do"] != "alive":
                self._workers.do(message)

    # The connection to the other launcher

    def _hello(self, **more: Any) -> dict[str, Any]:
        return {"host": self._options.host, "ranks": self._options.ranks, "session": self._session,
                "got": self._courier.got, **more}

    def _begin(self, first_host: HostConnection) -> None:
        """Goes on with a new connection."""
        assert first_host.welcome is not None
        self._first_host, self._heard = first_host, time.monotonic()
        self._away_since = self._again = None
        self._loop.watch(first_host.connection, lambda: self._hear(first_host))
        self._courier.attach(first_host.connection, first_host.welcome.get("got", 0))
        self._obey(first_host.early)

    def _cut(self, why: str, since: float) -> None:
        """There is no connection any more; it has been of no use for some time."""
        self._loop.close(self._first_host.connection)
        self._courier.detach()
        self._away_since, self._why_away, self._was_refused = since, why, False
        say(f"the launcher of host 0: {why}, or the connection is cut: tries to reach it for up to "
            f"{self._options.wait:g} s")

    def _reach_again(self, now: float) -> None:
        """Goes on with the attempt to make the connection again, or begins another one."""
        assert self._away_since is not None
        try:
            if self._again is None:
                self._again = HostConnection(self._options, self._token, self._hello(returns=True), self._address)
            self._again.turn(0)
        except Refused as error:
            self._why_away = str(error)
            return self._on_alone()
        except OSError:
            self._again = None
        if self._again is not None and self._again.welcome is not None:
            return self._return(self._again)
        if self._again is not None and self._again.is_over:
            self._was_refused, self._again = self._again.is_refused, None
        if now - self._away_since > self._options.wait or (self._was_refused and self._has_stopped):
            self._on_alone()

    @property
    def _has_stopped(self) -> bool:
        """True if the ranks here have saved and ended, as they do if the other launcher was killed."""
        return self._workers.is_empty and self._code_alone == STOPPED

    def _return(self, first_host: HostConnection) -> None:
        assert first_host.welcome is not None
        if first_host.welcome.get("is_new"):
            self._start_anew()
        say("the launcher of host 0 is connected again")
        self._begin(first_host)

    def _start_anew(self) -> None:
        """The ranks here are lost for the others, because this host was away for too long."""
        self._workers.close()
        self._courier = Courier()
        for noted in (self._sent_logs, self._cut_off, self._codes):
            noted.clear()
        self._is_saved = False
