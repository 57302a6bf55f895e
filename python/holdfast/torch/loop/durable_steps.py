"""Follows the saves that are under way until they are durable."""

import collections
import contextlib
from collections.abc import Callable

from holdfast import _native

OnDurable = Callable[[int, str], object]  # gets the step and its folder


class DurableSteps:
    """The newest durable step, and the saves whose outcome is not known yet."""

    def __init__(self, on_durable: OnDurable | None) -> None:
        self.latest: int | None = None
        self.count = 0  # how many saves of this process are durable
        if on_durable is not None and not callable(on_durable):
            raise TypeError(f"on_durable={on_durable!r}; expected a function of (step, folder)")
        self._on_durable = on_durable
        self._pending: collections.deque[tuple[int, _native.SaveHandle]] = collections.deque()

    def begun(self, step: int, handle: _native.SaveHandle) -> None:
        """Follows a save that has begun."""
        self._pending.append((step, handle))

    def resumed(self, step: int) -> None:
        """Notes that training goes on after that step, which is durable."""
        self.look()  # at saves of newer steps, which are no longer the newest
        self.latest = step

    def agree(self, job: _native.Job) -> int | None:
        """The newest durable step that any rank knows of, or None. All ranks call it together.

        A rank whose connection was cut does not know how a save ended, and the process that
        replaces a lost rank knows of no save at all. Calls no on_durable.
        """
        told = job.gather(b"" if (own := self.newest()) is None else str(own).encode())
        newest = max((int(one) for one in told if one), default=None)
        if not self._pending and newest is not None:
            self.latest = newest
        return newest

    @property
    def has_pending(self) -> bool:
        """True if a save is under way."""
        return any(not handle.is_done for _, handle in self._pending)

    def newest(self) -> int | None:
        """The newest step that is durable now, as far as this rank knows. Calls no on_durable."""
        for step, handle in reversed(self._pending):
            if handle.is_done:
                with contextlib.suppress(Exception):
                    handle.durable()
                    return step
        return self.latest

    def summary(self) -> str:
        """What is saved, for a message."""
        self.look()
        kept = "no step is saved" if self.latest is None else f"step {self.latest} is the newest saved"
        return f"{kept}; {self.count} {'save' if self.count == 1 else 'saves'}"

    def look(self) -> None:
        """Notes the saves that have become durable, and calls on_durable for each.

        A save that failed is dropped here: the job warns of it, or raises its error.
        """
        while self._pending and self._pending[0][1].is_done:
            step, handle = self._pending.popleft()
            try:
                folder = str(handle.durable().folder)
            except Exception:
                continue
            self.latest = step
            self.count += 1
            if self._on_durable is not None:
                self._on_durable(step, folder)
