"""Stop signals that come while a job changes its configuration, and has nobody to hear them."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class HeldSignals:
    """Keeps a signal until the job is open again. An open job hears signals itself, and passes them on to
    here; without one, they do what they do by default."""

    def __init__(self, is_heard: Callable[[], bool], *, is_active: bool) -> None:
        """`is_heard` says whether a job is open that hears signals."""
        self._is_heard = is_heard
        self._came: int | None = None
        self._is_held = False
        self._is_active = is_active and threading.current_thread() is threading.main_thread()
        for number in _SIGNALS if self._is_active else ():
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._hear)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside it, signals wait."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            came, self._came = self._came, None
            if came is not None:
                os.kill(os.getpid(), came)

    def _hear(self, number: int, _: Any) -> None:
        if self._is_held:
            self._came = number
        elif not self._is_heard():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
