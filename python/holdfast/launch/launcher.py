"""The launcher of one machine: a loop that waits for deaths and messages of its workers."""

import contextlib
import mmap
import os
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast import _native
from holdfast.launch import worker
from holdfast.launch.messages import Reader, send
from holdfast.launch.place import PAGE_BYTES, PAGE_STEP, STOPPED, Place
from holdfast.launch.store import StoreProcess

GAVE_UP = 1
_TICK = 500  # milliseconds
_PHASES = ("agreed", "started", "filled")  # as they are printed; they may come in another order
_MOST_LOSSES = 4  # a step that was lost so often is not tried again


@dataclass
class Options:
    """What the command line says."""

    ranks: int
    program: Sequence[str]
    is_module: bool = False


@dataclass
class Worker:
    """One process of the job."""

    rank: int
    pid: int
    ended: int  # a descriptor that becomes readable when the process has ended
    connection: socket.socket
    reader: Reader
    is_whole: bool  # it has its state: it began with the job, or was filled
    is_running: bool = False  # it has committed an update
    status: tuple[int, int, int, bool] | None = None  # in the generation that is being made
    has_joined: bool = True
    exit_code: int | None = None


@dataclass
class Recovery:
    """The recovery that is under way."""

    began: float
    phases: dict[str, float] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)  # what the replacement said

    def reached(self, phase: str) -> None:
        self.phases.setdefault(phase, time.monotonic() - self.began)


class Launcher:
    """All workers of one machine."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._id = secrets.token_hex(8)
        self._generation = 0
        self._incarnation = 0
        self._target = 0  # the update of the last decision
        self._workers: dict[int, Worker] = {}
        self._logs: list[int] = []
        self._pages = mmap.mmap(-1, PAGE_BYTES * options.ranks)
        self._recovery: Recovery | None = None
        self._last_loss: tuple[int, int] | None = None  # the step and the exit code
        self._has_begun = False  # all ranks have made an update
        self._losses = 0  # how often the step of the last loss was lost
        self._stopping = False
        self._wakeup, self._woken = socket.socketpair()
        self._store = StoreProcess()

    def run(self) -> int:
        """Returns the exit code of the job."""
        self._watch_signals()
        self._start_all()
        try:
            while (code := self._outcome()) is None:
                self._wait()
            return code if code >= 0 else 128 - code  # as a shell says it of a signal
        finally:
            self._kill_all()
            self._store.close()

    def _outcome(self) -> int | None:
        """The exit code of the job, once all workers have ended and none is replaced."""
        codes = [one.exit_code for one in self._workers.values()]
        if any(code is None for code in codes):
            return None
        bad = [code for code in codes if code not in (0, None)]
        return 0 if not bad else STOPPED if set(bad) == {STOPPED} else bad[0]

    # Starting

    def _start_all(self) -> None:
        for descriptor in self._logs:
            os.close(descriptor)
        self._logs = [os.memfd_create(f"holdfast-start-{rank}")
                      for rank in range(self._options.ranks)]
        for rank in range(self._options.ranks):
            self._step(rank, -1)
            self._start(rank, is_replacement=False)

    def _start(self, rank: int, *, is_replacement: bool) -> None:
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.setsid()  # so that its own children can be ended with it
            self._let_go(ours)
            self._become(rank, theirs, is_replacement)
        theirs.close()
        self._workers[rank] = Worker(rank, pid, os.pidfd_open(pid), ours, Reader(ours),
                                     is_whole=not is_replacement, has_joined=not is_replacement)

    def _become(self, rank: int, connection: socket.socket, is_replacement: bool) -> None:
        """What the forked process does; it does not return."""
        code = worker.FAILED
        try:
            os.environ.update(self._environment(rank))
            place = Place(rank, self._options.ranks, self._generation, self._incarnation,
                          is_replacement, connection, self._logs[rank], self._page(rank))
            code = worker.run(place, list(self._options.program), self._options.is_module)
        finally:
            os._exit(code)

    def _environment(self, rank: int) -> dict[str, str]:
        """The variables that torchrun sets, and ours."""
        ranks = str(self._options.ranks)
        threads = {} if "OMP_NUM_THREADS" in os.environ or ranks == "1" else {"OMP_NUM_THREADS": "1"}
        return {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "ROLE_RANK": str(rank),
            "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "ROLE_WORLD_SIZE": ranks,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": self._id,
            "TORCHELASTIC_RESTART_COUNT": str(self._incarnation),
            "HOLDFAST_LAUNCH_ID": self._id, "HOLDFAST_GENERATION": str(self._generation),
            **threads,
        }

    def _let_go(self, ours: socket.socket) -> None:
        """In a new worker: closes what belongs to the launcher alone."""
        self._store.let_go_in_child()
        for one in (ours, self._wakeup, self._woken):
            one.close()
        for other in self._living():
            other.connection.close()
            os.close(other.ended)

    # Waiting

    def _wait(self) -> None:
        poll = select.poll()
        live = [one for one in self._workers.values() if one.exit_code is None]
        ends = {one.ended: one for one in live}
        talks = {one.connection.fileno(): one for one in live if one.connection.fileno() >= 0}
        for descriptor in (*ends, *talks, self._woken.fileno()):
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(_TICK)}
        if self._woken.fileno() in ready:
            self._on_signal(self._woken.recv(64))
        for descriptor in ready & talks.keys():
            self._hear(talks[descriptor])
        dead = [ends[descriptor] for descriptor in sorted(ready & ends.keys())]
        lost = [one for one in dead if self._bury(one)]
        if lost:
            self._on_loss(lost)

    def _hear(self, one: Worker) -> None:
        messages = one.reader.read()
        if messages is None:
            one.connection.close()
            return
        for message in messages:
            getattr(self, f"_on_{message.pop('say')}")(one, message)

    def _watch_signals(self) -> None:
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)

    def _on_signal(self, numbers: bytes) -> None:
        """Passes a signal on; workers save and stop after it. A second Ctrl-C ends them."""
        for number in numbers:
            if self._stopping and number == signal.SIGINT:
                self._kill_all()
            passed = signal.SIGTERM if number == signal.SIGINT else number
            self._stopping = True
            for one in self._living():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, passed)

    # Deaths

    def _bury(self, one: Worker) -> bool:
        """Notes the end of a worker. True if the job has lost a rank by it."""
        if one.exit_code is not None:
            return False
        self._hear_last_words(one)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)  # its loaders, which hold its connections
        _, status = os.waitpid(one.pid, 0)
        one.exit_code = os.waitstatus_to_exitcode(status)
        os.close(one.ended)
        one.connection.close()
        if one.exit_code in (0, STOPPED):
            return False
        say(f"rank {one.rank} (pid {one.pid}) died{self._in_step(one.rank)}: "
            f"{_words(one.exit_code)}")
        return not self._stopping

    def _hear_last_words(self, one: Worker) -> None:
        with contextlib.suppress(OSError, ValueError):
            one.connection.setblocking(False)
            self._hear(one)

    def _on_loss(self, lost: list[Worker]) -> None:
        if any(one.exit_code in (0, STOPPED) for one in self._workers.values()):
            say("other ranks have ended already: the job ends")
            return self._end(lost[0].exit_code)
        if self._is_lost_again(lost[0]):
            return self._end(lost[0].exit_code)
        if not self._has_begun:
            return self._restart("a rank died before the first update of all ranks was made")
        if not any(one.is_whole for one in self._living()):
            return self._restart("no rank is left that has the state")
        self._generation += 1
        self._recovery = Recovery(time.monotonic())
        for one in list(self._workers.values()):
            one.status = None
            if not one.is_whole and one.exit_code is None:
                self._kill(one)  # a replacement that was not whole yet begins anew
        missing = [one for one in self._workers.values() if one.exit_code is not None]
        for one in self._living():
            one.has_joined = False
            self._send(one, say="lost", generation=self._generation,
                       ranks=[other.rank for other in missing])
        for one in missing:
            self._start(one.rank, is_replacement=True)
            say(f"generation {self._generation}: rank {one.rank} starts again "
                f"(pid {self._workers[one.rank].pid})")

    def _is_lost_again(self, one: Worker) -> bool:
        """True if the same step was lost before in the same way: it would be lost for ever."""
        loss = (self._step(one.rank), one.exit_code or 0)
        before, self._last_loss = self._last_loss, loss
        self._losses = self._losses + 1 if before and before[0] == loss[0] else 1
        most = 2 if before == loss and (loss[1] > 0 or loss[0] < 0) else _MOST_LOSSES
        if self._losses < most:
            return False
        where = f"step {loss[0]}" if loss[0] >= 0 else "the start"
        say(f"{where} was lost {self._losses} times, the last time by {_words(loss[1])}: the job "
            "ends")
        return True

    def _restart(self, why: str) -> None:
        say(f"all ranks start again from the newest checkpoint: {why}")
        self._kill_all()
        self._incarnation += 1
        self._generation += 1
        self._target, self._recovery, self._has_begun = 0, None, False
        self._start_all()

    def _end(self, code: int | None) -> None:
        self._kill_all()
        for one in self._workers.values():
            one.exit_code = code or GAVE_UP

    # Agreement

    def _on_running(self, one: Worker, _: dict[str, Any]) -> None:
        one.is_running = True
        self._has_begun = all(other.is_running for other in self._workers.values())

    def _on_started(self, one: Worker, _: dict[str, Any]) -> None:
        if self._recovery is not None:
            self._recovery.reached("started")

    def _on_at(self, one: Worker, message: dict[str, Any]) -> None:
        if message.pop("generation") != self._generation:
            return
        one.status = (one.rank, message["committed"], message["ready"], message["begun"])
        whole = [other for other in self._workers.values() if other.is_whole]
        if any(other.status is None for other in whole) or self._recovery is None:
            return
        self._recovery.reached("agreed")
        decision = _native.decide([other.status for other in whole if other.status], self._target)
        if decision.refused:
            return self._restart(decision.refused)
        self._target = decision.target
        for other in self._living():
            self._send(other, say="decided", generation=self._generation, target=self._target,
                       course=decision.courses.get(other.rank, "fill"))

    def _on_joined(self, one: Worker, message: dict[str, Any]) -> None:
        if message.pop("generation") != self._generation or self._recovery is None:
            return
        one.has_joined = one.is_whole = True
        self._recovery.told |= message
        if all(other.has_joined for other in self._workers.values()):
            self._recovery.reached("filled")
            self._report(self._recovery)
            self._recovery = None

    def _on_restart(self, one: Worker, message: dict[str, Any]) -> None:
        self._restart(f"rank {one.rank}: {message['why']}")

    def _report(self, done: Recovery) -> None:
        phases = " ".join(f"{name} {done.phases[name]:.2f}" for name in _PHASES
                          if name in done.phases)
        why = done.told.get("inexact")
        say(f"step {done.told['step']} goes on after {done.phases['filled']:.1f} s: replica, "
            f"{f'not exact: {why[0]}' if why else 'exact'}, 0 steps lost ({phases})")

    # Small things

    def _living(self) -> list[Worker]:
        return [one for one in self._workers.values() if one.exit_code is None]

    def _send(self, one: Worker, **message: Any) -> None:
        with contextlib.suppress(OSError):  # its death is noticed elsewhere
            send(one.connection, **message)

    def _kill(self, one: Worker) -> None:
        # A process that was forked a moment ago leads no group yet, so that there is none to kill.
        for end in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                end(one.pid, signal.SIGKILL)
        os.waitpid(one.pid, 0)
        one.exit_code = -signal.SIGKILL
        os.close(one.ended)
        one.connection.close()

    def _kill_all(self) -> None:
        for one in self._living():
            self._kill(one)

    def _page(self, rank: int) -> memoryview:
        whole = memoryview(self._pages)[rank * PAGE_BYTES:(rank + 1) * PAGE_BYTES]
        return whole.cast("q")

    def _step(self, rank: int, value: int | None = None) -> int:
        page = self._page(rank)
        if value is not None:
            page[PAGE_STEP] = value
        return page[PAGE_STEP]

    def _in_step(self, rank: int) -> str:
        step = self._step(rank)
        return f" in step {step}" if step >= 0 else " before its first step"


def say(text: str) -> None:
    """A line for the user."""
    print(f"holdfast: {text}", file=sys.stderr, flush=True)


def _words(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
