"""Notices that a loop over epochs begins with 0 again after a resume.

`for epoch in range(epochs)` then makes all epochs once more, and so the training makes too many. With
which of its numbers a program counts epochs is seen by the name of the variable, or by its loops: a `for` over a
range around a `for` over the loader.
"""

import ast

from types import FrameType
from typing import Any

from holdfast.torch.values.program_loops import loops_around
from holdfast.torch.values.program_values import program_frames, variables
from holdfast.torch.values.stored_attributes import stored

_TEXT = ("the loop's epoch is {now} after a resume in epoch {then}: `for epoch in range(epochs)` makes more "
         "epochs than without a restart; expected `for epoch in range(loader.epoch, epochs)`")
_FIRST = (0, 1)  # with what loops over epochs begin
_NAMES = frozenset({"epoch", "ep", "iepoch", "i_epoch", "epoch_i", "epoch_idx", "epoch_index", "epoch_id",
                    "epoch_num", "epoch_number", "cur_epoch", "current_epoch", "this_epoch"})


def begins_again(then: Any, loader: Any) -> str:
    """A warning if the program counts its epochs from the beginning, and was resumed in epoch `then`.

    `loader` is the one that knows the epoch.
    """
    if not isinstance(then, int) or then < 1:
        return ""
    now = _epoch_of_program()
    now = _epoch_of_loops(loader) if now is None else now
    return _TEXT.format(now=now, then=then) if now in _FIRST and now < then else ""


def _epoch_of_program() -> int | None:
    """The newest count of epochs in the frames of the program that lead to here; None without one."""
    for frame in program_frames():
        for value in _counts(frame):
            if type(value) is int:
                return value
    return None


def _epoch_of_loops(loader: Any) -> int | None:
    """The number of the loop right around the `for` over the loader, if it counts a range."""
    is_inside = False
    for frame in program_frames():
        if "site-packages" in frame.f_code.co_filename:
            continue
        known = variables(frame)
        for loop in loops_around(frame):
            if is_inside:
                value = known.get(_counts_range(loop))
                return value if type(value) is int else None
            is_inside = isinstance(loop, ast.For) and any(_is_loader(part, known, loader)
                                                          for part in ast.walk(loop.iter))
    return None


def _counts_range(loop: ast.For | ast.While) -> str:
    """The variable of a loop over range(...); "" for other loops."""
    is_range = (isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call)
                and isinstance(loop.iter.func, ast.Name) and loop.iter.func.id == "range")
    return loop.target.id if is_range and isinstance(loop.target, ast.Name) else ""


def _is_loader(part: ast.AST, known: dict[str, Any], loader: Any) -> bool:
    """True for `loader` and `self.loader`, if that is the one; no property is called."""
    one: Any = None
    if isinstance(part, ast.Name):
        one = known.get(part.id)
    elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
        one = dict(stored(known.get(part.value.id))).get(part.attr)
    return one is not None and (one is loader or dict(stored(one)).get("position") is loader)


def _counts(frame: FrameType) -> list[Any]:
    """The values of those variables of a running function or module that count epochs by their names."""
    if _NAMES.isdisjoint(frame.f_code.co_varnames + frame.f_code.co_cellvars + frame.f_code.co_names):
        return []
    known = variables(frame)
    return [known[name] for name in _NAMES & known.keys()]
