"""The loop of a launcher: one thread that waits for descriptors, signals and the next tick."""

import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable

TICK = 0.2  # seconds
_LATE = 1.0  # seconds between two ticks that only a process that was stopped has

Source = socket.socket | int


class Loop:
    """Calls the handler of each source that has something to read."""

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        self._handlers: dict[int, tuple[Source, Callable[[], None]]] = {}
        self._on_signal = on_signal
        self._wakeup, woken = socket.socketpair()
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        self.watch(woken, lambda: self._hear_signals(woken))

    def watch(self, source: Source, handler: Callable[[], None]) -> None:
        """Calls the handler when the source can be read."""
        self._handlers[_number(source)] = source, handler

    def close(self, source: Source) -> None:
        """Closes a source, which may be closed already, and forgets it."""
        if self._handlers.pop(_number(source), None) is not None:
            _close(source)

    def turn(self) -> None:
        """Waits for one tick at most, and calls the handlers of what came."""
        poll = select.poll()
        for number in self._handlers:
            poll.register(number, select.POLLIN)
        ready = [(number, self._handlers[number]) for number, _ in sorted(poll.poll(TICK * 1000))]
        for number, watched in ready:
            # Another handler may have closed it, and may have opened a new source that has its number now.
            if self._handlers.get(number) is watched:
                watched[1]()

    def is_ready(self, source: Source) -> bool:
        """Waits for one tick at most. True if the source can be read."""
        return bool(select.select([source], [], [], TICK)[0])

    def let_go_in_child(self) -> None:
        """In a new worker: closes what belongs to the launcher alone."""
        self._wakeup.close()
        for source, _ in self._handlers.values():
            _close(source)

    def _hear_signals(self, woken: socket.socket) -> None:
        for number in woken.recv(64):
            self._on_signal(number)


class Awake:
    """Since when this process was not stopped itself, as a suspended job is. What was silent before
    may have been stopped at the same time, and gets as long as ever to show that it lives."""

    def __init__(self) -> None:
        self.since = 0.0
        self._last_tick = 0.0

    def tick(self, now: float) -> None:
        """Called often, with the time of the monotonic clock."""
        if now - self._last_tick > _LATE:
            self.since = now
        self._last_tick = now


def _number(source: Source) -> int:
    return source if isinstance(source, int) else source.fileno()


def _close(source: Source) -> None:
    with contextlib.suppress(OSError):
        os.close(source) if isinstance(source, int) else source.close()
