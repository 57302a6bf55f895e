"""The numbers of steps, as a training loop gives them."""

import operator
from typing import Any


class StepNumbers:
    """The step that was given last, and the one that was saved last.

    Numbers must grow, over all epochs and restarts.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._last: int | None = None
        self._saved: int | None = None

    def check_next(self, step: Any) -> int:
        """The number; TypeError or ValueError for one that cannot be that of the next step."""
        number = whole_number(step)
        if self._last is not None and number < self._last:
            raise ValueError(f"step {number} after step {self._last}; expected numbers that grow, "
                             "in all epochs and over restarts")
        self._last = number
        return number

    def resumed(self, step: int) -> None:
        """Notes that training goes on after that step, which is saved."""
        self._last = self._saved = step

    def saved(self, step: int) -> None:
        """Notes that a save of that step has begun."""
        self._saved = step
        self._last = step if self._last is None else max(self._last, step)

    def is_last_of_all(self, step: int) -> bool:
        """True if the total number of steps is known and this is the last one."""
        return step + 1 == self._total

    def unsaved_warning(self) -> str | None:
        """A sentence about steps that no checkpoint has, if there are any."""
        if self._last is None or self._saved is not None and self._last <= self._saved:
            return None
        newest = "none" if self._saved is None else f"step {self._saved}"
        return (f"the last step was {self._last}, and the newest that is saved is {newest}; "
                f"expected save({self._last}) before close(), or "
                "schedule=holdfast.Schedule(total_steps=...), to keep the end")


def whole_number(step: Any) -> int:
    try:
        return operator.index(step)
    except TypeError:
        raise TypeError(f"step={step!r}; expected a whole number") from None
