"""Notices that a loop over epochs begins with 0 again after a resume.

`for epoch in range(epochs)` then makes all epochs once more, and so the training makes too many. Which
of its numbers a script counts epochs with is seen in its variable `epoch`.
"""

import sys
from typing import Any

_TEXT = ("the loop's epoch is {now} after a resume in epoch {then}: `for epoch in range(epochs)` makes more "
         "epochs than without a restart; expected `for epoch in range(loader.epoch, epochs)`")
_FIRST = (0, 1)  # with what loops over epochs begin
_MOST_FRAMES = 16


def begins_again(then: Any) -> str:
    """A warning if the program counts its epochs from the beginning, and was resumed in epoch `then`."""
    now = _epoch_of_program()
    is_behind = now in _FIRST and isinstance(then, int) and now < then
    return _TEXT.format(now=now, then=then) if is_behind else ""


def _epoch_of_program() -> int | None:
    """The variable of the nearest module outside of Holdfast that leads to here; None without one.

    The variables of functions are not looked at: Python would keep all that they hold alive.
    """
    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        is_program = not frame.f_globals.get("__name__", "").startswith("holdfast.")
        if is_program and frame.f_code.co_name == "<module>":
            found = frame.f_globals.get("epoch")
            return found if type(found) is int else None
    return None
