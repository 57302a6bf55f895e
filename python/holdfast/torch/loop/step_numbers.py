"""The numbers of steps, as a training loop gives them, and which of the saved ones are durable."""

import collections
import contextlib
from collections.abc import Callable
from typing import Any

from holdfast import _native
from holdfast.whole_number import whole_number

OnDurable = Callable[[int, str], object]  # gets the step and its folder

DAMAGED = "the watch has found damage"  # a reason not to save the end


class StepNumbers:
    """The step that was given last, and the one that was saved last.

    Numbers must grow, over all epochs and restarts.
    """

    def __init__(self, total: int | None) -> None:
        self.total = total  # how many steps the training makes; None if that is not known
        self._last: int | None = None
        self._updated: int | None = None  # the number under which an update was seen
        self.saved_last: int | None = None  # the step of the newest save

    def check_next(self, step: Any, updated: bool) -> int:
        """The number; TypeError or ValueError for one that cannot be that of the next step.

        `updated` says whether an update was seen since the last call. The micro-batches of an update
        may share a number, and two updates may not: a resumed training would skip the second.
        """
        number = step if type(step) is int and 0 <= step < 1 << 63 else whole_number("step", step)
        if self._last is not None and number < self._last:
            raise ValueError(f"step {number} after step {self._last}; expected numbers that grow, "
                             "in all epochs and over restarts")
        if updated and number == self._last == self._updated:
            raise ValueError(f"step {number} was given before, and the model was updated since then; "
                             "expected a number of its own for each update, such as one that counts "
                             "the updates of all epochs")
        if self.total is not None and number >= self.total:
            raise ValueError(f"step {number}, and Schedule(total_steps={self.total}) says that "
                             f"{self.total - 1} is the last one; expected a loop that ends there, "
                             "such as `for epoch in range(loader.epoch, epochs)`, or more "
                             "total_steps")
        self._last, self._updated = number, number if updated else self._updated
        return number

    def resumed(self, step: int) -> None:
        """Notes that training goes on after that step, which is saved."""
        self._last = self.saved_last = step
        self._updated = None

    def take_over(self, step: int) -> int:
        """Notes, and returns, the step after which training goes on; it may not be saved."""
        self._last, self._updated = step, None
        return step

    @property
    def last(self) -> int | None:
        """The step that was made or restored last; None if there is none."""
        return self._last

    def saved(self, step: int) -> None:
        """Notes that a save of that step has begun."""
        self.saved_last = step
        self._last = step if self._last is None else max(self._last, step)

    def agreed(self, step: int | None) -> None:
        """Notes which step is the newest durable one, when all saves under way were dropped."""
        self.saved_last = step

    @property
    def unsaved(self) -> int | None:
        """The last step, if no checkpoint has it."""
        if self._last is None or self.saved_last is None:
            return self._last
        return None if self._last <= self.saved_last else self._last

    def unsaved_warning(self, why: str) -> str:
        """A sentence about the end, which is not saved, and what to do about it."""
        newest = "none" if self.saved_last is None else f"step {self.saved_last}"
        expected = ("resume(), which takes a step without it" if why == DAMAGED else
                    f"save({self._last}) right after it, or "
                    "schedule=holdfast.Schedule(total_steps=...), to keep the end")
        return (f"the last step was {self._last}, and the newest that is saved is {newest}, as "
                f"{why}; expected {expected}")


class DurableSteps:
    """The newest durable step, and the saves whose outcome is not known yet: followed until they are durable."""

    def __init__(self, on_durable: OnDurable | None) -> None:
        self.latest: int | None = None
        self.count = 0  # how many saves of this process are durable
        if on_durable is not None and not callable(on_durable):
            raise TypeError(f"on_durable={on_durable!r}; expected a function of (step, folder)")
        self._on_durable = on_durable
        self.pending: collections.deque[tuple[int, _native.SaveHandle]] = collections.deque()

    def begun(self, step: int, handle: _native.SaveHandle) -> None:
        """Follows a save that has begun."""
        self.pending.append((step, handle))

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
        if not self.pending and newest is not None:
            self.latest = newest
        return newest

    @property
    def has_pending(self) -> bool:
        """True if a save is under way."""
        return any(not handle.is_done for _, handle in self.pending)

    def newest(self) -> int | None:
        """The newest step that is durable now, as far as this rank knows. Calls no on_durable."""
        for step, handle in reversed(self.pending):
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
        while self.pending and self.pending[0][1].is_done:
            step, handle = self.pending.popleft()
            try:
                folder = str(handle.durable().folder)
            except Exception:
                continue
            self.latest = step
            self.count += 1
            if self._on_durable is not None:
                self._on_durable(step, folder)
