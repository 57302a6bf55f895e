"""A background thread that settles saves which training does not settle soon.

A save is committed once it is settled (saves.py), which training does before its next update. A
validation may come first and take an hour, and a job that dies meanwhile would lose the save. So
this thread settles a save whose copy has been complete for a while.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

_PERIOD = 1.0  # seconds; most updates come sooner, so the thread finds nothing to do


class SettleThread:
    """Calls a method every second in its own thread, while the method's object lives."""

    def __init__(self, method: Callable[[], None]) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=_run, args=(weakref.WeakMethod(method), self._stop), daemon=True,
            name="holdfast settles")
        self._thread.start()

    def close(self) -> None:
        """Ends the thread. The caller must not hold a lock that the method waits for."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()


def _run(method: "weakref.WeakMethod[Any]", stop: threading.Event) -> None:
    while not stop.wait(_PERIOD):
        call = method()
        if call is None:
            return
        call()
        del call  # the object may be freed while this thread sleeps
