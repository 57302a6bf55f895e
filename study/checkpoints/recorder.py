"""Records what a kill would leave at every call of a process that changes files.

1. The work runs in a forked process under a seccomp filter with user notification: the kernel asks this
   process before each system call that changes files. The filter holds for all threads and children.
2. If such a call is about the watched folder, the folder is read: this is what SIGKILL would leave at this
   moment. So one run gives every kill point. Other threads may still be in a call that was let go on: that is
   waited for, or else the folder is read until it stays the same.
3. Then the call goes on. Instead of that, it can be answered with ENOSPC (a full disk), or its process
   can be killed while others go on (one of several ranks).

io_uring and Linux's asynchronous I/O write behind the back of such a filter, so their set-up is answered
with ENOSYS, and engines take plain calls. What a mapping writes is seen only at the next call, and told
as `unseen`. Needs Linux 5.5 on x86-64 or aarch64; no root, no ptrace. Imports no framework, so that
the Python of any framework can run it.
"""

import array
import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trees import Tree, read_tree

# Numbers of the calls that change files, for each CPU. None: the CPU has no such call.
CALLS: dict[str, tuple[int | None, int | None]] = {  # name: (x86_64, aarch64)
    "open": (2, None), "creat": (85, None), "openat": (257, 56), "openat2": (437, 437),
    "write": (1, 64), "writev": (20, 66), "pwrite64": (18, 68), "pwritev": (296, 70),
    "pwritev2": (328, 287), "copy_file_range": (326, 285), "sendfile": (40, 71), "splice": (275, 76),
    "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47), "fsync": (74, 82),
    "fdatasync": (75, 83), "msync": (26, 227), "sync": (162, 81), "syncfs": (306, 267),
    "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "unlink": (87, None),
    "unlinkat": (263, 35), "rmdir": (84, None), "mkdir": (83, None), "mkdirat": (258, 34),
    "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36),
    "io_uring_setup": (425, 425), "io_setup": (206, 0),
}  # fmt: skip
CPU = {"x86_64": 0, "aarch64": 1}
SECCOMP = {"x86_64": 317, "aarch64": 277}
REFUSED = ("io_uring_setup", "io_setup")
# Which arguments name a file: the place of its descriptor ...
BY_DESCRIPTOR = {name: 0 for name in ("write", "writev", "pwrite64", "pwritev", "pwritev2", "sendfile",
                                      "ftruncate", "fallocate", "fsync", "fdatasync")}  # fmt: skip
BY_DESCRIPTOR |= {"copy_file_range": 2, "splice": 2}
# ... or the places of a folder's descriptor (None: the path stands alone) and of a path.
BY_PATH: dict[str, list[tuple[int | None, int]]] = {
    "open": [(None, 0)], "creat": [(None, 0)], "openat": [(0, 1)], "openat2": [(0, 1)],
    "truncate": [(None, 0)], "rename": [(None, 0), (None, 1)], "renameat": [(0, 1), (2, 3)],
    "renameat2": [(0, 1), (2, 3)], "unlink": [(None, 0)], "unlinkat": [(0, 1)], "rmdir": [(None, 0)],
    "mkdir": [(None, 0)], "mkdirat": [(0, 1)], "link": [(None, 0), (None, 1)],
    "linkat": [(0, 1), (2, 3)], "symlink": [(None, 1)], "symlinkat": [(1, 2)],
}  # fmt: skip
WRITES = ("write", "writev", "pwrite64", "pwritev", "pwritev2", "copy_file_range", "sendfile", "splice",
          "fallocate", "ftruncate", "truncate")  # fmt: skip
SYNCS = ("fsync", "fdatasync", "msync", "sync", "syncfs")

# struct seccomp_notif and seccomp_notif_resp, and the requests that receive and send them.
ASKED, ANSWER, ASKED_BYTES = "QIIiIQ6Q", "QqiI", 80
RECEIVE = (3 << 30) | (ASKED_BYTES << 16) | (0x21 << 8)
SEND = (3 << 30) | (24 << 16) | (0x21 << 8) | 1
GO_ON = 1
AT_FDCWD = -100
SETTLED = 0.02  # seconds to wait for calls of other threads, which take microseconds
READS = 5  # how often the folder is read if it changes meanwhile

libc = ctypes.CDLL(None, use_errno=True)


class NotPermitted(Exception):
    """This system does not let a process install such a filter."""


@dataclass(frozen=True)
class Call:
    """A call that was about to change the folder."""

    name: str
    rank: int
    paths: tuple[str, ...]  # relative to the folder; "." is the folder itself
    before: Tree  # what the folder had then

    @property
    def writes(self) -> bool:
        return self.name in WRITES

    @property
    def syncs(self) -> bool:
        return self.name in SYNCS


@dataclass
class Recording:
    """All that was seen. `codes` are the exit codes of the ranks; below 0, a signal ended them."""

    calls: list[Call] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    last: Tree = field(default_factory=dict)
    unseen: set[str] = field(default_factory=set)  # files that something other than a call has changed
    writes: int = 0

    def states(self) -> list[Tree]:
        """What a kill can leave: each once, in the order of time."""
        states: list[Tree] = []
        for tree in (*(call.before for call in self.calls), self.last):
            if not states or tree != states[-1]:
                states.append(tree)
        return [tree for place, tree in enumerate(states) if tree not in states[:place]]


def numbers() -> dict[int, str]:
    """The calls of this CPU by their numbers."""
    column = CPU[platform.machine()]
    return {number: name for name, both in CALLS.items() if (number := both[column]) is not None}


def record(works: Sequence[Callable[[], None]], folder: Path, *, full_after: int | None = None,
           kill: tuple[int, int] | None = None, seconds: float = 60.0, quiet: float = 0.5) -> Recording:
    """Runs each of the works in a process of its own until all have ended, and records the folder.

    full_after  the disk is full after so many writes to the folder
    kill        (rank, n): this rank is killed at its n-th call; the others end when they like, or are
                killed when none of them has asked for a change for `quiet` seconds
    seconds     after which all are killed
    """
    return _Recorder(folder, full_after, kill, quiet).run(works, seconds)


class _Recorder:
    def __init__(self, folder: Path, full_after: int | None, kill: tuple[int, int] | None,
                 quiet: float) -> None:
        self.folder, self.full_after, self.kill, self.quiet = folder.resolve(), full_after, kill, quiet
        self.names, self.found = numbers(), Recording()
        self.processes: list[int] = []
        self.listeners: dict[int, int] = {}  # descriptor -> rank
        self.waiting: deque[tuple[int, tuple[int, ...]]] = deque()  # (listener, what it asked)
        self.going_on: dict[int, int] = {}  # thread -> the call that it was let make
        # What the last call of each thread may have changed. Until its next call, that one may not be over.
        self.touched: dict[int, set[str]] = {}
        self.counts: dict[int, int] = {}  # rank -> its calls so far
        self.codes: dict[int, int] = {}  # rank -> its exit code
        self.poll, self.closed = select.poll(), 0

    def run(self, works: Sequence[Callable[[], None]], seconds: float) -> Recording:
        self.last = read_tree(self.folder)
        for rank, work in enumerate(works):
            process, listener = _start(work)
            self.processes.append(process)
            self.listeners[listener] = rank
            self.poll.register(listener, select.POLLIN)
        try:
            self._serve(time.monotonic() + seconds)
        finally:
            for rank in range(len(works)):
                self._end(rank)
            for listener in self.listeners:
                os.close(listener)
        self.found.codes = [self.codes[rank] for rank in range(len(works))]
        self.found.last = self._look()
        return self.found

    def _serve(self, until: float) -> None:
        changed, killed = time.monotonic(), False
        while self.closed < len(self.listeners) and time.monotonic() < until:
            self._receive(50)
            while self.waiting:
                listener, asked = self.waiting.popleft()
                killed, changed = self._answer(listener, asked) or killed, time.monotonic()
            # Children that stay behind, such as a daemon that saves, may go on for a moment.
            if (killed or self._have_ended()) and time.monotonic() - changed > self.quiet:
                return

    def _have_ended(self) -> bool:
        for rank, process in enumerate(self.processes):
            if rank not in self.codes and (ended := os.waitpid(process, os.WNOHANG))[0]:
                self.codes[rank] = os.waitstatus_to_exitcode(ended[1])
        return len(self.codes) == len(self.processes)

    def _end(self, rank: int) -> None:
        """Kills a rank with its children. A rank that has ended keeps its exit code."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.processes[rank], signal.SIGKILL)
        if rank not in self.codes:
            self.codes[rank] = os.waitstatus_to_exitcode(os.waitpid(self.processes[rank], 0)[1])

    def _receive(self, milliseconds: int) -> None:
        """Takes what processes ask. To receive from a listener that nobody asks would wait for ever."""
        for listener, event in self.poll.poll(milliseconds):
            if event & select.POLLIN:
                request = bytearray(ASKED_BYTES)
                with contextlib.suppress(OSError):  # its process has died meanwhile
                    fcntl.ioctl(listener, RECEIVE, request)
                    self.waiting.append((listener, struct.unpack(ASKED, request)))
            else:  # no process is left under this filter
                self.poll.unregister(listener)
                self.closed += 1

    def _answer(self, listener: int, asked: tuple[int, ...]) -> bool:
        """Answers one call. True if its process was killed instead."""
        ident, thread, _, number, _, _, *given = asked
        rank, wrong = self.listeners[listener], 0
        name = self.names[number]
        if name in REFUSED:
            wrong = errno.ENOSYS
        elif _may_change(name, given) and (paths := self._inside(thread, name, given)):
            settled = self._settle(thread)
            count = self.counts[rank] = self.counts.get(rank, 0) + 1
            if self.kill == (rank, count):
                self._end(rank)
                return True
            self.found.calls.append(Call(name, rank, paths, self._look(settled)))
            self.touched[thread] = set(paths)
            if name in WRITES:
                self.found.writes += 1
                if self.full_after is not None and self.found.writes > self.full_after:
                    wrong = errno.ENOSPC
            self.going_on[thread] = number
        with contextlib.suppress(OSError):
            fcntl.ioctl(listener, SEND, struct.pack(ANSWER, ident, 0, -wrong, 0 if wrong else GO_ON))
        return False

    def _settle(self, thread: int) -> bool:
        """Waits until no other thread is in a call that it was let make. False if that takes too long."""
        self.going_on.pop(thread, None)
        until = time.monotonic() + SETTLED
        while self.going_on and time.monotonic() < until:
            self._receive(0)
            stopped = {asked[1] for _, asked in self.waiting}
            self.going_on = {other: number for other, number in self.going_on.items()
                             if other not in stopped and _may_be_in_call(other, number)}
        return not self.going_on

    def _look(self, is_still: bool = True) -> Tree:
        """What the folder has. Tells what changed without a call."""
        tree = read_tree(self.folder, self.last)
        for _ in range(0 if is_still else READS):
            before, tree = tree, read_tree(self.folder, tree)
            if before == tree:
                break
        touched = set().union(*self.touched.values())
        for path in tree.keys() | self.last.keys():
            if tree.get(path) != self.last.get(path) and not any(
                    path == one or path.startswith(one + "/") for one in touched):
                self.found.unseen.add(path)
        self.last = tree
        return tree

    def _inside(self, thread: int, name: str, given: list[int]) -> tuple[str, ...]:
        """The paths of a call that lie in the folder, relative to it."""
        if name in ("sync", "syncfs"):  # of everything, and so of the folder
            return (".",)
        found = []
        for path in _paths(thread, name, given):
            if path == self.folder or path.is_relative_to(self.folder):
                found.append(str(path.relative_to(self.folder)))
        return tuple(found)


def _start(work: Callable[[], None]) -> tuple[int, int]:
    """Forks a process that does the work under the filter. Returns it, and the filter's descriptor."""
    ours, theirs = socket.socketpair()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            ours.close()
            os.setsid()
            listener = _install()
            theirs.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener]))])
            os.close(listener)
            theirs.close()
            work()
            code = 0
        except BaseException as error:  # noqa: BLE001: the work may fail in any way
            with contextlib.suppress(OSError):
                theirs.send(type(error).__name__.encode())
        os._exit(code)
    theirs.close()
    _, extra, _, _ = ours.recvmsg(64, socket.CMSG_SPACE(4))
    ours.close()
    if not extra:
        os.waitpid(process, 0)
        raise NotPermitted("seccomp: no filter with user notification may be installed here")
    return process, array.array("i", extra[0][2])[0]


def _install() -> int:
    """Installs the filter in this process. Returns the descriptor that its calls are received from."""
    wanted = sorted(numbers())
    steps = [(0x20, 0, 0, 0)]  # load the number of the call
    steps += [(0x15, len(wanted) - place, 0, number) for place, number in enumerate(wanted)]  # if equal: ask
    steps += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x7FC00000)]  # allow; ask
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(text))
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    # SECCOMP_SET_MODE_FILTER with SECCOMP_FILTER_FLAG_NEW_LISTENER
    listener = libc.syscall(SECCOMP[platform.machine()], 1, 8, ctypes.create_string_buffer(program))
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return listener


def _may_change(name: str, given: list[int]) -> bool:
    if name in ("open", "openat"):
        return bool(given[1 if name == "open" else 2] & (os.O_CREAT | os.O_TRUNC))
    return True


def _paths(thread: int, name: str, given: list[int]) -> list[Path]:
    """The absolute paths that a call is about."""
    try:
        if name in BY_DESCRIPTOR:
            return [Path(os.readlink(f"/proc/{thread}/fd/{given[BY_DESCRIPTOR[name]] & 0xFFFFFFFF}"))]
        if name == "msync":
            return [Path(path) for path in [_mapped(thread, given[0])] if path]
        return [_named(thread, None if folder is None else given[folder], given[path])
                for folder, path in BY_PATH[name]]  # fmt: skip
    except OSError:
        return []


def _named(thread: int, folder: int | None, address: int) -> Path:
    """The path that a text in the memory of a thread names."""
    number = AT_FDCWD if folder is None else ctypes.c_int(folder & 0xFFFFFFFF).value
    base = os.readlink(f"/proc/{thread}/cwd" if number == AT_FDCWD else f"/proc/{thread}/fd/{number}")
    path = Path(base, _text(thread, address))
    return path.parent.resolve() / path.name


def _text(thread: int, address: int) -> str:
    with open(f"/proc/{thread}/mem", "rb", 0) as memory:
        memory.seek(address)
        data = memory.read(256 - address % 256)  # up to the end of a page at most
        while b"\0" not in data and len(data) < 4096:
            data += memory.read(256)
    return os.fsdecode(data.split(b"\0")[0])


def _mapped(thread: int, address: int) -> str:
    """The file that is mapped at an address; "" if there is none."""
    for line in Path(f"/proc/{thread}/maps").read_text().splitlines():
        low, _, high = line.split(" ", 1)[0].partition("-")
        if int(low, 16) <= address < int(high, 16):
            words = line.split(None, 5)
            return words[5] if len(words) > 5 else ""
    return ""


def _may_be_in_call(thread: int, number: int) -> bool:
    """True also for a thread that computes: the kernel tells the call only of one that waits."""
    try:
        return Path(f"/proc/{thread}/syscall").read_text().split()[0] in ("running", str(number))
    except OSError:
        return False  # it has ended
