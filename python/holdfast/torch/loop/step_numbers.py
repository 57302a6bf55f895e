"""The numbers of steps, as a training loop gives them."""

import operator
from typing import Any


class Steps:
    """What was given last, and saved last. Numbers grow, in all epochs and over restarts."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._last: int | None = None
        self._saved: int | None = None

    def take(self, step: Any) -> int:
        """The number; TypeError or ValueError for one that cannot be that of a step."""
        number = whole_number(step)
        if self._last is not None and number < self._last:
            raise ValueError(f"step {number} after step {self._last}, want numbers that grow, in "
                             "all epochs and over restarts")
        self._last = number
        return number

    def resumed(self, step: int) -> None:
        """Goes on from there."""
        self._last = self._saved = step

    def saved(self, step: int) -> None:
        """It is in a checkpoint, or will be."""
        self._saved = step
        self._last = step if self._last is None else max(self._last, step)

    def is_last_of_all(self, step: int) -> bool:
        """True if it is known that no other follows."""
        return step + 1 == self._total

    def lost(self) -> str | None:
        """A sentence about steps that are in no checkpoint, if there are any."""
        if self._last is None or self._saved is not None and self._last <= self._saved:
            return None
        newest = "none" if self._saved is None else f"step {self._saved}"
        return (f"the last step was {self._last}, and the newest that is saved is {newest}: want "
                f"save({self._last}) before close(), or total_steps=, to keep the end")


def whole_number(step: Any) -> int:
    try:
        return operator.index(step)
    except TypeError:
        raise TypeError(f"step={step!r}: want a whole number") from None
