"""The launcher of a host that another launcher decides for (hosts.py)."""

import contextlib
import hmac
import secrets
import signal
import socket
import time
from typing import Any

from holdfast.launch.door import LOOK, Refused, no_answer
from holdfast.launch.hosts import proof, token
from holdfast.launch.loop import Awake, Loop
from holdfast.launch.messages import Reader, Sender, send
from holdfast.launch.options import Options
from holdfast.launch.orphans import Register
from holdfast.launch.place import STOPPED
from holdfast.launch.processes import SILENCE, Workers
from holdfast.launch.recoveries import say

_TO_SAVE = 60.0  # seconds for workers to save if only the other launcher has ended
_TO_END = 10.0  # the same if its host is gone, with ranks that a save needs


class Follower:
    """Carries out what the launcher of host 0 decides."""

    def __init__(self, options: Options, register: Register) -> None:
        self._token = token(options.at_text)
        self._early: list[dict[str, Any]] = []  # commands that came together with the welcome
        self._connection, self._reader = self._connect(options)
        self._sender = Sender(self._connection)
        self._loop = Loop(self._on_signal)
        self._workers = Workers(options.program, options.is_module, self._loop, self._report)
        self._workers.beat, self._workers.register = self._beat, register.note
        self._workers.logs = options.logs
        self._sent_logs: set[tuple[int, int]] = set()  # by rank and serial number
        self._heard = time.monotonic()
        self._awake = Awake()
        self._ends_at: float | None = None  # when the workers are ended, without their leader
        self._code: int | None = None
        self._loop.watch(self._connection, self._hear)

    def run(self) -> int:
        """Returns the exit code of the job."""
        try:
            self._obey(self._early)
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
        if self._ends_at is None and now - max(self._heard, self._awake.since) > SILENCE:
            self._on_alone(f"no sign of life for {SILENCE:.0f} s", _TO_END)
        if self._ends_at is not None and (self._workers.is_empty or now > self._ends_at):
            self._code = STOPPED

    def _beat(self) -> None:
        self._send({"say": "beat"})

    def _on_alone(self, why: str, seconds: float) -> None:
        say(f"the launcher of host 0: {why}: ranks here save if they can, and end")
        self._loop.close(self._connection)
        self._workers.do({"do": "signal", "number": int(signal.SIGTERM)})
        self._ends_at = time.monotonic() + seconds

    def _on_signal(self, number: int) -> None:
        if self._ends_at is None:
            self._report({"say": "signal", "number": number})
        else:
            self._code = STOPPED

    def _report(self, report: dict[str, Any]) -> None:
        if report["say"] == "message" and report["message"]["say"] == "committed":
            self._send_log(report["rank"], report["serial"])
        self._send(report)

    def _send_log(self, rank: int, serial: int) -> None:
        """The start of this rank is over: keeps what it heard safe from the loss of this host."""
        if (rank, serial) not in self._sent_logs:
            self._sent_logs.add((rank, serial))
            for part in self._workers.log_of(rank):
                self._send({"say": "log", **part})

    def _send(self, report: dict[str, Any]) -> None:
        if self._ends_at is not None:
            return
        with contextlib.suppress(OSError):  # the end of the connection is noticed elsewhere
            if report["say"] not in ("alive", "beat") or self._sender.is_idle:
                self._sender.put(report)
            else:
                self._sender.flush()

    def _hear(self) -> None:
        messages = self._reader.read()
        if messages is None:
            return self._on_alone("it has ended", _TO_SAVE)
        self._heard = time.monotonic()
        self._obey(messages)

    def _obey(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            if message["do"] == "end":
                self._code = message["code"]
            elif message["do"] != "alive":
                self._workers.do(message)

    # Meeting the other launcher

    def _connect(self, options: Options) -> tuple[socket.socket, Reader]:
        """Refused if there is no launcher at that address in time, or if it says no."""
        deadline = time.monotonic() + options.wait
        why = ""
        while True:
            connection = None
            try:
                connection = socket.create_connection(options.at, timeout=SILENCE)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                reader = Reader(connection)
                if not (why := self._introduce(connection, reader, options)):
                    connection.setblocking(False)
                    return connection, reader
            except OSError as error:
                why = error.strerror or str(error)
            if connection is not None:
                connection.close()
            if time.monotonic() > deadline:
                raise no_answer(options, why)
            time.sleep(LOOK)

    def _introduce(self, connection: socket.socket, reader: Reader, options: Options) -> str:
        """Returns why the other launcher does not take this one yet; "" if it does."""
        number = secrets.token_hex(16)
        theirs = _read(reader)[0]["number"]
        send(connection, host=options.host, ranks=options.ranks, number=number,
             proof=proof(self._token, theirs, "host"))
        # Host 0 begins to give commands as soon as it has sent the welcome.
        answer, *self._early = _read(reader)
        if answer["do"] == "refuse":
            if not answer["again"]:
                raise Refused(f"--at {options.at_text}: refused: {answer['why']}")
            return str(answer["why"])
        expected = proof(self._token, number, "coordinator")
        if not hmac.compare_digest(answer["proof"].encode(), expected.encode()):
            raise Refused(f"--at {options.at_text}: what answers there is no launcher of this job")
        return ""


def _read(reader: Reader) -> list[dict[str, Any]]:
    """The messages that come next, at least one. OSError if none comes."""
    while (messages := reader.read()) is not None:
        if messages:
            return messages
    raise ConnectionError("the connection ended")
