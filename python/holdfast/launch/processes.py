"""The worker processes of this host: starts them, watches them and ends them.

It takes commands and makes reports, both plain dicts, so that the launcher that decides may be on
another host (hosts.py). Every process has a serial number, by which a report about a process that
was replaced meanwhile is told from one about its successor.

    command                                        report
    start   a process for a rank                   born     its process id
    tell    a message to a process                 message  what a process says
    kill    ends a process, and says why           ended    its exit code, and where it was
    signal  for all or some processes              alive    steps of ranks, and which wait in calls
    log     a part of a start-up log, for a        log      the same, from another host
            rank that ran on another host
"""

import base64
import contextlib
import mmap
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.launch import worker
from holdfast.launch.environment import environment
from holdfast.launch.loop import Awake, Loop
from holdfast.launch.messages import Reader, send
from holdfast.launch.printer import Printer
from holdfast.launch.worker_identity import (
    FAILED,
    HELPERS,
    PAGE_BEAT,
    PAGE_BYTES,
    PAGE_LOOKED,
    PAGE_STEP,
    PAGE_WAITS_SINCE,
    WorkerIdentity,
)

# Seconds without a beat after which a process is ended. Beats and ticks add up to 0.3 s, so that it
# happens within 3 s.
SILENCE = 2.7
_STUCK = 5.0  # seconds after which a process that has not looked at its calls cannot

_PART = 1 << 19  # bytes of a start-up log in one message

Report = Callable[[dict[str, Any]], None]


@dataclass
class Process:
    """One worker."""

    rank: int
    serial: int
    pid: int
    ended: int  # a descriptor that becomes readable when the process has ended
    connection: socket.socket
    reader: Reader
    folder: str  # of a helper, which is removed after its end
    why: str = ""  # why the launcher has ended it
    silent_since: float | None = None  # its last sign of life, if it was ended for its silence
    traced_at: float = 0.0  # when a debugger was last seen to hold it


class Workers:
    """All of them."""

    def __init__(self, program: Sequence[str], is_module: bool, loop: Loop, report: Report) -> None:
        self._program, self._is_module = list(program), is_module
        self._loop, self._report = loop, report
        self._processes: dict[int, Process] = {}  # those that live, by rank
        self._logs: dict[int, int] = {}  # start-up logs, by rank
        self._pages: dict[int, memoryview] = {}
        self.logs: Path | None = None  # the folder for what ranks print
        self.printer: Printer | None = None  # without both, ranks print as this process does
        self.register: Callable[[list[int]], None] = lambda _: None  # called with the ids of all
        self.beat: Callable[[], None] = lambda: None  # called while the end of a process takes long
        self._awake = Awake()

    def do(self, command: dict[str, Any]) -> None:
        """Carries out a command."""
        command = dict(command)
        getattr(self, f"_do_{command.pop('do')}")(**command)

    def close(self) -> None:
        """Ends all processes."""
        for process in list(self._processes.values()):
            self._remove(process)

    @property
    def is_empty(self) -> bool:
        return not self._processes

    def log_of(self, rank: int) -> Iterator[dict[str, Any]]:
        """The start-up log of a rank, for a replacement on another host: arguments of `log`."""
        descriptor = self._logs[rank]
        for at in range(0, os.fstat(descriptor).st_size, _PART):
            data = os.pread(descriptor, _PART, at)
            yield {"rank": rank, "at": at, "data": base64.b64encode(data).decode()}

    # Commands

    def _do_start(self, *, rank: int, serial: int, is_replacement: bool, identity: dict[str, Any],
                  job: dict[str, Any]) -> None:
        if rank in self._processes:
            self._remove(self._processes[rank])
        if rank >= HELPERS:
            self._logs[rank] = os.dup(self._logs[identity["helped"]])
        elif not is_replacement or rank not in self._logs:
            self._make_log(rank)
        page = self._fresh_page(rank, keeps_step=is_replacement)
        ours, theirs = socket.socketpair()
        folder = _own_folder() if rank >= HELPERS else ""
        prints_to = self._print_to(rank)
        sys.stdout.flush()
        sys.stderr.flush()
        # A stop signal that comes before the process can hear it waits (worker.py).
        signal.pthread_sigmask(signal.SIG_BLOCK, worker.STOP_SIGNALS)
        pid = os.fork()
        if pid == 0:
            os.setsid()  # so that its own children can be ended with it
            ours.close()
            self._loop.let_go_in_child()
            if self.printer is not None:
                self.printer.let_go_in_child()
            own = WorkerIdentity(slot=rank, is_replacement=is_replacement, connection=theirs,
                                 log=self._logs[rank], page=page, folder=folder, **identity)
            self._become(own, environment(own, job), prints_to)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, worker.STOP_SIGNALS)
        theirs.close()
        for one in prints_to:
            os.close(one)
        self._add(Process(rank, serial, pid, os.pidfd_open(pid), ours, Reader(ours), folder))

    def _do_log(self, *, rank: int, at: int, data: str) -> None:
        if at == 0:
            self._make_log(rank)
        os.pwrite(self._logs[rank], base64.b64decode(data), at)

    def _do_tell(self, *, rank: int, serial: int, message: dict[str, Any]) -> None:
        process = self._processes.get(rank)
        if process is not None and process.serial == serial:
            with contextlib.suppress(OSError):  # its death is noticed elsewhere
                send(process.connection, **message)

    def _do_kill(self, *, rank: int, serial: int, why: str) -> None:
        process = self._processes.get(rank)
        if process is not None and process.serial == serial:
            self._end(process, why)

    def _do_signal(self, *, number: int, serials: Sequence[int] | None = None) -> None:
        for process in self._processes.values():
            if serials is None or process.serial in serials:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def _do_close(self) -> None:
        self.close()

    # Starting

    def _print_to(self, rank: int) -> tuple[int, ...]:
        """Descriptors of what a new process prints to: its outputs, or both; () if as this process."""
        if rank >= HELPERS:  # the replacement prints the same
            return (os.open(os.devnull, os.O_WRONLY),)
        if self.logs is not None:
            return (os.open(self.logs / f"rank-{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666),)
        return () if self.printer is None else self.printer.open(rank)

    def _become(self, identity: WorkerIdentity, variables: dict[str, str], prints_to: Sequence[int]) -> None:
        """What the forked process does; it does not return."""
        code = FAILED
        try:
            os.environ.update(variables)
            if prints_to:
                _redirect(prints_to)
            code = worker.run(identity, self._program, self._is_module)
        finally:
            os._exit(code)

    def _add(self, process: Process) -> None:
        self._processes[process.rank] = process
        self.register([one.pid for one in self._processes.values()])
        self._loop.watch(process.ended, lambda: self._bury(process))
        self._loop.watch(process.connection, lambda: self._hear(process))
        self._report({"say": "born", "rank": process.rank, "serial": process.serial,
                      "pid": process.pid})

    def _make_log(self, rank: int) -> None:
        if rank in self._logs:
            os.close(self._logs[rank])
        self._logs[rank] = os.memfd_create(f"holdfast-start-{rank}")

    def _fresh_page(self, rank: int, *, keeps_step: bool) -> memoryview:
        if rank not in self._pages:
            self._pages[rank] = memoryview(mmap.mmap(-1, PAGE_BYTES)).cast("q")
            self._pages[rank][PAGE_STEP] = -1
        page = self._pages[rank]
        page[PAGE_BEAT] = page[PAGE_LOOKED] = page[PAGE_WAITS_SINCE] = 0
        if not keeps_step:
            page[PAGE_STEP] = -1
        return page

    # Watching

    def tick(self) -> None:
        """Called often: ends processes that show no sign of life, and reports on the others."""
        now = time.monotonic()
        self._awake.tick(now)
        if self.printer is not None:
            self.printer.tick()
        for process in list(self._processes.values()):
            self._end_if_silent(process, now)
        self._report({
            "say": "alive",
            "waits": {str(rank): [process.serial, self._wait_of(rank, now)]
                      for rank, process in self._processes.items()},
            "steps": {str(rank): self._pages[rank][PAGE_STEP] for rank in self._processes}})

    def _end_if_silent(self, process: Process, now: float) -> None:
        beat = self._pages[process.rank][PAGE_BEAT] / 1e9
        if not beat or process.why \
                or now - max(beat, self._awake.since, process.traced_at) <= SILENCE:
            return
        if _is_traced(process.pid):
            process.traced_at = now
            return
        process.silent_since = beat
        self._end(process, f"no sign of life for {SILENCE:.0f} s")

    def _wait_of(self, rank: int, now: float) -> float | None:
        """For how long a rank has waited in a collective call; None if it is in none."""
        page = self._pages[rank]
        since = page[PAGE_WAITS_SINCE] / 1e9
        is_stuck = now - page[PAGE_LOOKED] / 1e9 > _STUCK  # something holds Python's lock
        return None if not since or is_stuck else now - max(since, self._awake.since)

    def _hear(self, process: Process) -> None:
        messages = process.reader.read()
        if messages is None:
            self._loop.close(process.connection)
        for message in messages or ():
            self._report({"say": "message", "rank": process.rank, "serial": process.serial,
                          "message": message})

    # Ending

    def _end(self, process: Process, why: str) -> None:
        """Ends a process; its end is noticed as any other."""
        process.why = why
        _kill(process.pid)

    def _bury(self, process: Process) -> None:
        """Reports the end of a process."""
        if process.connection.fileno() >= 0:
            process.connection.setblocking(False)
            self._hear(process)  # its last words
        now = time.monotonic()
        self._report({"say": "ended", "rank": process.rank, "serial": process.serial,
                      "code": self._remove(process), "why": process.why,
                      "step": self._pages[process.rank][PAGE_STEP],
                      "ago": now - (process.silent_since or now)})

    def _remove(self, process: Process) -> int:
        """Ends a process with all its children, such as loaders, which hold its connections."""
        _kill(process.pid)
        while not self._loop.is_ready(process.ended):  # memory of a device may be freed for seconds
            self.beat()
        _, status = os.waitpid(process.pid, 0)
        self._loop.close(process.ended)
        if process.connection.fileno() >= 0:
            self._loop.close(process.connection)
        if self.printer is not None:
            self.printer.release(process.rank)
        del self._processes[process.rank]
        if process.rank >= HELPERS:
            os.close(self._logs.pop(process.rank))
            shutil.rmtree(process.folder, ignore_errors=True)
        return os.waitstatus_to_exitcode(status)


def _own_folder() -> str:
    """A new folder that no other user can read or have made before; "" if there cannot be one."""
    with contextlib.suppress(OSError):
        return tempfile.mkdtemp(prefix="holdfast-helper-")
    return ""


def _redirect(prints_to: Sequence[int]) -> None:
    """What this process prints goes there, also if the launcher is killed."""
    for stream, one in ((1, prints_to[0]), (2, prints_to[-1])):
        os.dup2(one, stream)
    for one in prints_to:
        os.close(one)
    with contextlib.suppress(AttributeError):  # another object takes the place of standard output
        sys.stdout.reconfigure(line_buffering=True)


def _is_traced(pid: int) -> bool:
    """True if a debugger holds the process."""
    with contextlib.suppress(OSError):
        return "\nTracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()
    return False


def _kill(pid: int) -> None:
    # A process that was forked a moment ago leads no group yet, so that there is none to kill.
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            end(pid, signal.SIGKILL)
