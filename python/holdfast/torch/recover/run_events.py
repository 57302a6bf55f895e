"""Events of the launcher in the log of the run: the launcher does not know where the run is."""

import threading
from typing import Any

from holdfast import _native


class RunEvents:
    """Events that wait for a job that can write them."""

    def __init__(self) -> None:
        self._job: _native.Job | None = None
        self._waiting: list[tuple[str, dict[str, Any]]] = []
        self._lock = threading.Lock()

    def write_to(self, job: _native.Job) -> None:
        """Writes what waits, and from now on all others at once."""
        with self._lock:
            self._job = job
            for name, fields in self._waiting:
                getattr(job, name)(fields)
            self._waiting = []

    def stop(self, job: _native.Job | None) -> None:
        """This job ends: what comes waits for another."""
        with self._lock:
            if self._job is job:
                self._job = None

    def put(self, name: str, fields: dict[str, Any]) -> None:
        """Called from any thread."""
        with self._lock:
            if self._job is None:
                self._waiting.append((name, fields))
            else:
                getattr(self._job, name)(fields)
