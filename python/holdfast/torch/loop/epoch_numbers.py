"""Notices that a loop over epochs begins with 0 again after a resume.

`for epoch in range(epochs)` then makes all epochs once more, and so the training makes too many. Which
of its numbers a program counts epochs with is seen in the functions that have called ck.step(): in a
variable `epoch`.
"""

import sys
from typing import Any

_TEXT = ("the loop's epoch is {now} after a resume in epoch {then}: `for epoch in range(epochs)` makes more "
         "epochs than without a restart; expected `for epoch in range(loader.epoch, epochs)`")
_FIRST = (0, 1)  # with what loops over epochs begin
_MOST_FRAMES = 16


def begins_again(loader: Any) -> str:
    """A warning if the program counts its epochs from the beginning, and the loader is in a later one."""
    then, now = getattr(loader, "epoch", None), _epoch_of_program()
    is_behind = now in _FIRST and isinstance(then, int) and now < then
    return _TEXT.format(now=now, then=then) if is_behind else ""


def _epoch_of_program() -> int | None:
    """The variable of the nearest function that has one and leads to here; None without one."""
    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        found = frame.f_locals.get("epoch")
        if type(found) is int and not frame.f_globals.get("__name__", "").startswith("holdfast."):
            return found
    return None
