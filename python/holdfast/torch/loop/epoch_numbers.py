"""Notices that a loop over epochs begins with 0 again after a resume.

`for epoch in range(epochs)` then makes all epochs once more, and so the training makes too many. With
which of its numbers a program counts epochs is seen by the name of the variable.
"""

from types import FrameType
from typing import Any

from holdfast.torch.values.program_values import program_frames, variables

_TEXT = ("the loop's epoch is {now} after a resume in epoch {then}: `for epoch in range(epochs)` makes more "
         "epochs than without a restart; expected `for epoch in range(loader.epoch, epochs)`")
_FIRST = (0, 1)  # with what loops over epochs begin
_NAMES = frozenset({"epoch", "ep", "iepoch", "i_epoch", "epoch_i", "epoch_idx", "epoch_index", "epoch_id",
                    "epoch_num", "epoch_number", "cur_epoch", "current_epoch", "this_epoch"})


def begins_again(then: Any) -> str:
    """A warning if the program counts its epochs from the beginning, and was resumed in epoch `then`."""
    now = _epoch_of_program()
    is_behind = now in _FIRST and isinstance(then, int) and now < then
    return _TEXT.format(now=now, then=then) if is_behind else ""


def _epoch_of_program() -> int | None:
    """The newest count of epochs in the frames of the program that lead to here; None without one."""
    for frame in program_frames():
        for value in _counts(frame):
            if type(value) is int:
                return value
    return None


def _counts(frame: FrameType) -> list[Any]:
    """The values of those variables of a running function or module that count epochs by their names."""
    if _NAMES.isdisjoint(frame.f_code.co_varnames + frame.f_code.co_cellvars + frame.f_code.co_names):
        return []
    known = variables(frame)
    return [known[name] for name in _NAMES & known.keys()]
