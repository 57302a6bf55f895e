"""Starts a command, and ends it with all processes that came from it.

Workers of torchrun have process groups of their own, and some programs detach their children. So
this process adopts all orphans that come from it, and ends every process below it.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Makes this process the parent of processes below it whose parent has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(command: Sequence[str], log: Path, variables: Mapping[str, str]) -> subprocess.Popen:
    """Starts the command in a session of its own, without input; `log` gets what it prints."""
    with open(log, "ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                stderr=subprocess.STDOUT, env={**os.environ, **variables},
                                start_new_session=True)


def end(process: subprocess.Popen) -> None:
    """Kills the command itself, so that it starts nothing anew, and then all that came from it."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()
    while below := _processes_below(os.getpid()):
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap(below)
        time.sleep(0.002)


def _reap(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):  # it has another parent, until that one ends
            os.waitpid(pid, os.WNOHANG)


def _processes_below(root: int) -> list[int]:
    """All processes that came from that one, as long as their parents live or were adopted."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                text = (entry / "stat").read_text()
                parent = int(text.rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = list(children.get(root, ()))
    for pid in found:
        found += children.get(pid, ())
    return found
