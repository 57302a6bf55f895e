"""Settles saves that training itself does not come to settle.

A save is committed once its copy is known to be good, which is asked for before the next
update. A validation may come first, and take an hour; a job that dies in it would lose the
save. So where a copy has been complete for a while, another thread asks.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

_PERIOD = 1.0  # seconds; most updates come sooner, and find nothing of it


class Settler:
    """Calls a method of an object every second, in a thread of its own, while both live."""

    def __init__(self, method: Callable[[], None]) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=_run, args=(weakref.WeakMethod(method), self._over), daemon=True,
            name="holdfast settles")
        self._thread.start()

    def close(self) -> None:
        """Returns when the thread is gone. Not to be called with a lock that it waits for."""
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()


def _run(method: "weakref.WeakMethod[Any]", over: threading.Event) -> None:
    while not over.wait(_PERIOD):
        call = method()
        if call is None:
            return
        call()
        del call  # the object may go while this one sleeps
