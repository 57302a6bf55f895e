"""Notices that a loop over epochs begins with 0 again after a resume.

`for epoch in range(epochs)` then makes all epochs once more, and so the training makes too many. With
which of its numbers a program counts epochs is seen by the name of the variable.
"""

import inspect
import sys
from typing import Any

_TEXT = ("the loop's epoch is {now} after a resume in epoch {then}: `for epoch in range(epochs)` makes more "
         "epochs than without a restart; expected `for epoch in range(loader.epoch, epochs)`")
_FIRST = (0, 1)  # with what loops over epochs begin
_MOST_FRAMES = 16
_NAMES = frozenset({"epoch", "ep", "iepoch", "i_epoch", "epoch_i", "epoch_idx", "epoch_index", "epoch_id",
                    "epoch_num", "epoch_number", "cur_epoch", "current_epoch", "this_epoch"})


def begins_again(then: Any) -> str:
    """A warning if the program counts its epochs from the beginning, and was resumed in epoch `then`."""
    now = _epoch_of_program()
    is_behind = now in _FIRST and isinstance(then, int) and now < then
    return _TEXT.format(now=now, then=then) if is_behind else ""


def _epoch_of_program() -> int | None:
    """The newest count of epochs in the frames outside of Holdfast that lead to here; None without one."""
    frame: Any = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        frame = frame.f_back
        if frame is None:
            return None
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in ("holdfast", "torch"):
            for value in _counts(frame):
                if type(value) is int:
                    return value
    return None


def _counts(frame: Any) -> list[Any]:
    """The values of those variables of a running function or module that count epochs by their names.

    Before 3.13, Python makes a dict of a function's variables and keeps it, and with it all that they
    hold, as long as the function runs: it is emptied.
    """
    if _NAMES.isdisjoint(frame.f_code.co_varnames + frame.f_code.co_cellvars + frame.f_code.co_names):
        return []
    known = frame.f_locals
    found = [known[name] for name in _NAMES & known.keys()]
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13):
        known.clear()
    return found
