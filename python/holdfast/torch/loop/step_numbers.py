"""The numbers of steps, as a training loop gives them."""

import operator
from typing import Any

DAMAGED = "the watch has found damage"  # a reason not to save the end


class StepNumbers:
    """The step that was given last, and the one that was saved last.

    Numbers must grow, over all epochs and restarts.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._last: int | None = None
        self._updated: int | None = None  # the number under which an update was seen
        self.saved_last: int | None = None  # the step of the newest save

    def check_next(self, step: Any, updated: bool) -> int:
        """The number; TypeError or ValueError for one that cannot be that of the next step.

        `updated` says whether an update was seen since the last call. The micro-batches of an update
        may share a number, and two updates may not: a resumed training would skip the second.
        """
        number = step if type(step) is int and 0 <= step < 1 << 63 else whole_number(step)
        if self._last is not None and number < self._last:
            raise ValueError(f"step {number} after step {self._last}; expected numbers that grow, "
                             "in all epochs and over restarts")
        if updated and number == self._last == self._updated:
            raise ValueError(f"step {number} was given before, and the model was updated since then; "
                             "expected a number of its own for each update, such as one that counts "
                             "the updates of all epochs")
        if self._total is not None and number >= self._total:
            raise ValueError(f"step {number}, and Schedule(total_steps={self._total}) says that "
                             f"{self._total - 1} is the last one; expected a loop that ends there, "
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

    def is_last_of_all(self, step: int) -> bool:
        """True if the total number of steps is known and this is the last one."""
        return step + 1 == self._total

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


def whole_number(step: Any) -> int:
    """The number as an int; TypeError or ValueError if it cannot be that of a step."""
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"step={step!r}; expected a whole number") from None
    if number < 0:
        raise ValueError(f"step={step}; expected 0 or more")
    if number >= 1 << 63:
        raise ValueError(f"step={step}; expected a number below 2**63")
    return number
