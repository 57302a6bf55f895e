"""Measures in processes of their own: forked, because importing a framework takes seconds, and watched."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crash import write_to_log


def in_a_fork(work: Callable[[], Any], folder: Path, seconds: float = 600.0) -> Any:
    """What the work returns, as JSON. RuntimeError if the process fails, dies or takes longer.

    folder  where a log with its output, and its answer, are written
    """
    folder.mkdir(parents=True, exist_ok=True)
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    process = os.fork()
    if process == 0:
        _run(work, folder, answer, seconds)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code == -signal.SIGALRM:
        raise RuntimeError(f"hangs: it has not ended after {seconds:.0f} s")
    found = json.loads(answer.read_text()) if answer.exists() else {"error": f"it ended with {code}, without a word"}
    if "error" in found:
        raise RuntimeError(found["error"])
    return found["found"]


def _run(work: Callable[[], Any], folder: Path, answer: Path, seconds: float) -> None:
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        write_to_log(folder)
        try:
            found = {"found": work()}
        except BaseException as error:  # noqa: BLE001: a rival may fail in any way
            words = str(error).strip().splitlines()
            found = {"error": f"{type(error).__name__}: {words[0][:200] if words else 'no word'}"}
        answer.write_text(json.dumps(found))
    finally:
        os._exit(0)


def seconds_of(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_of(work: Callable[[], Any]) -> int:
    """By how many bytes the memory of this process grows at most while it works."""
    with contextlib.suppress(OSError):  # where the system does not let it, the peak is that since the start
        Path("/proc/self/clear_refs").write_text("5")
    before = _memory("VmRSS")
    work()
    return max(0, _memory("VmHWM") - before)


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":"))
