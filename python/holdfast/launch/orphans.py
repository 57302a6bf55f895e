"""Ends processes of an earlier launch of the same program whose launcher was killed.

They save and end by themselves, but one that is stuck would keep the run in use for ever. So a
launcher leaves the ids and start times of its processes in a folder of its user, and the next launch
of the same program with the same arguments, from the same folder, looks there. A process is never
found by its name, and one that has the id of an orphan is left alone if it began at another time.
"""

import contextlib
import json
import os
import signal
import stat
import tempfile
import time
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from holdfast.launch.options import Options
from holdfast.launch.recoveries import say

_TO_SAVE = 20.0  # seconds that orphans have to end by themselves
_LOOK = 0.1  # seconds

Started = tuple[int, int]  # the id of a process, and when it began, in ticks since the machine did


class Register:
    """The processes of this launcher, in a file that its successor reads."""

    def __init__(self, options: Options) -> None:
        text = json.dumps([os.getcwd(), list(options.program), options.is_module, options.host,
                           options.at_text])
        self._key = sha256(text.encode()).hexdigest()[:32]
        self._folder = _folder()
        self._own = None if self._folder is None else self._folder / f"{self._key}.{os.getpid()}"

    def end_orphans(self) -> None:
        """Waits for the orphans of earlier launches, and ends those that do not end by themselves."""
        for path in self._folder.glob(f"{self._key}.*") if self._folder is not None else ():
            told = _read(path)
            if told is None or not _lives(told[0]):
                if told is not None:
                    _end([one for one in told[1:] if _lives(one)])
                with contextlib.suppress(OSError):
                    path.unlink()

    def note(self, pids: Iterable[int]) -> None:
        """Notes the processes that this launcher has now."""
        if self._own is None:
            return
        started = [(pid, _began(pid)) for pid in (os.getpid(), *pids)]
        made = self._own.with_suffix(f".{os.getpid()}.new")
        with contextlib.suppress(OSError):
            made.write_text(json.dumps({"boot": _boot(), "processes": started}))
            made.rename(self._own)

    def close(self) -> None:
        """The job has ended, with all its processes."""
        if self._own is not None:
            self._own.unlink(missing_ok=True)


def _end(orphans: list[Started]) -> None:
    if not orphans:
        return
    names = ", ".join(str(pid) for pid, _ in orphans)
    say(f"processes of an earlier launch of this program, whose launcher was killed, still live (pid "
        f"{names}): they are ended unless they end within {_TO_SAVE:g} s")
    deadline = time.monotonic() + _TO_SAVE
    while (left := [one for one in orphans if _lives(one)]) and time.monotonic() < deadline:
        time.sleep(_LOOK)
    for one in left:
        _kill(one)
    say(f"ended pid {', '.join(str(pid) for pid, _ in left)}" if left else "they have ended")


def _kill(one: Started) -> None:
    """Ends a process with all its children: a worker leads a group of processes."""
    with contextlib.suppress(OSError):
        holder = os.pidfd_open(one[0])
        try:
            if _lives(one):  # the id cannot get another process while the descriptor is open
                os.killpg(one[0], signal.SIGKILL) if os.getpgid(one[0]) == one[0] else \
                    signal.pidfd_send_signal(holder, signal.SIGKILL)
        finally:
            os.close(holder)
    deadline = time.monotonic() + _TO_SAVE
    while _lives(one) and time.monotonic() < deadline:
        time.sleep(_LOOK)


def _folder() -> Path | None:
    """The folder, which only this user can write to; None if there cannot be one."""
    path = Path(tempfile.gettempdir()) / f"holdfast-launch-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        seen = path.lstat()
    except OSError:
        return None
    is_own = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid() and not seen.st_mode & 0o077
    return path if is_own else None


def _read(path: Path) -> list[Started] | None:
    """What a launcher has left: itself, and its processes. None if that is of no use."""
    try:
        told: Any = json.loads(path.read_text())
        made = [(int(pid), int(began)) for pid, began in told["processes"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return made if made and told.get("boot") == _boot() else None


def _boot() -> str:
    """What is another one each time the machine starts."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _lives(one: Started) -> bool:
    pid, began = one
    return pid > 1 and began > 0 and _began(pid) == began


def _began(pid: int) -> int:
    """When a process began, in ticks since the machine did; 0 if it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    return 0
