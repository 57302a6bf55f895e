"""Prints what several ranks print, line by line, with the number of its rank before each line.

The ranks print into pipes, and a process of its own reads these (lines.py). It is no part of the
launcher, because it must outlive a launcher that is killed: its ranks then save, and would fail if they
printed into a pipe that nobody reads. What the launcher itself prints goes the same way, so that it
comes behind what a rank has printed before it died.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

from holdfast.launch.lines import Printing

_TO_PRINT = 5.0  # seconds that the end of the job waits until all is printed
_LAUNCHER = -1  # stands for the launcher, among the numbers of ranks


class Printer:
    """The launcher's side of it."""

    def __init__(self) -> None:
        self._out, self._err = os.dup(1), os.dup(2)  # where all is printed
        self._reads: dict[int, list[int]] = {}  # what the process reads of each rank, in case that it dies
        self._begin()
        read, write = self._make_pipe()
        self._reads[_LAUNCHER] = [read]
        self._give(_LAUNCHER, 2, read)
        os.dup2(write, 2)
        os.close(write)

    def open(self, rank: int) -> tuple[int, int]:
        """Descriptors for the standard output and the standard error of a new process of the rank."""
        self.release(rank)
        pipes = [self._make_pipe() for _ in range(2)]
        self._reads[rank] = [read for read, _ in pipes]
        for stream, (read, _) in enumerate(pipes, start=1):
            self._give(rank, stream, read)
        return pipes[0][1], pipes[1][1]

    def release(self, rank: int) -> None:
        """The process of the rank has ended. What it has printed is still read."""
        for read in self._reads.pop(rank, ()):
            os.close(read)

    def let_go_in_child(self) -> None:
        """In a new worker: closes what belongs to the launcher alone."""
        self._control.close()
        for read in [self._out, self._err, *(one for reads in self._reads.values() for one in reads)]:
            os.close(read)

    def tick(self) -> None:
        """Called often: begins another process if the process has died."""
        if select.select([self._ended], [], [], 0)[0]:
            os.waitpid(self._pid, 0)
            os.close(self._ended)
            self._control.close()
            self._begin()
            for rank, reads in self._reads.items():
                for stream, read in enumerate(reads, start=2 if rank == _LAUNCHER else 1):
                    self._give(rank, stream, read)

    def close(self) -> None:
        """Waits until all is printed; not for long, because whoever reads it may have stopped."""
        sys.stderr.flush()
        os.dup2(self._err, 2)
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
            self._control.settimeout(_TO_PRINT)
            self._control.recv(1)  # returns when the process has closed its side
        self._control.close()

    def _begin(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if self._pid == 0:
            _print(self._out, self._err, theirs)
        theirs.close()
        self._ended = os.pidfd_open(self._pid)  # becomes readable when the process has ended

    @staticmethod
    def _make_pipe() -> tuple[int, int]:
        read, write = os.pipe()
        os.set_blocking(read, False)
        return read, write

    def _give(self, rank: int, stream: int, read: int) -> None:
        label = "" if rank == _LAUNCHER else f"[{rank}] "
        with contextlib.suppress(OSError):  # the process has died: tick() gives it to the next one
            socket.send_fds(self._control, [f"{stream}{label}".encode()], [read])


def _print(out: int, err: int, control: socket.socket) -> None:
    """What the process does; it does not return."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)  # it ends with the last process that prints
        _close_all_but({out, err, control.fileno()})
        _serve(Printing(out, err), control)
        code = 0
    finally:
        os._exit(code)


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))
    Path("/proc/self/comm").write_text("holdfast-print")


def _serve(printing: Printing, control: socket.socket) -> None:
    is_open = True
    while is_open or printing.has_sources:
        poll = select.poll()
        if is_open:
            poll.register(control, select.POLLIN)
        for number in printing.numbers():
            poll.register(number, select.POLLIN)
        ready = {number for number, _ in poll.poll(printing.milliseconds())}
        printing.read(ready)
        printing.flush_idle(time.monotonic())
        if is_open and control.fileno() in ready:
            message, numbers, _, _ = socket.recv_fds(control, 1024, 1)
            if message:
                printing.add(numbers[0], int(message[:1]), message[1:])
            else:  # the launcher ends, or was killed
                printing.read_all()
                control.close()
                is_open = False
