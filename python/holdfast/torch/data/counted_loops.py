"""Finds whether a loop leaves its epochs by a count of batches, which begins with 0 in a resumed epoch, too."""

import ast
import itertools
from collections.abc import Iterator
from types import FrameType

from holdfast.torch.data.passes import Pass, holders_of
from holdfast.torch.values.program_loops import loops_around
from holdfast.torch.values.program_values import program_frames


def count_of(one: Pass) -> str:
    """What counts the batches of a pass from 0, and ends it by that; "" if nothing is seen.

    Called when the first batch is asked for. It takes some milliseconds.
    """
    for holder in holders_of(one):
        if type(holder) is itertools.islice:
            return "itertools.islice"
        if type(holder) is tuple and any(type(part) is _RANGE for part in holder):
            return "zip with a range"
        if type(holder) is enumerate and holder.__reduce__()[1][1] == 0:
            return next(filter(None, map(_break_in, program_frames())), "")
    return ""


_RANGE = type(iter(range(0)))


def _break_in(frame: FrameType) -> str:
    """The `if` that leaves the `for` over enumerate() that this frame is at; "" if there is none."""
    for loop in loops_around(frame):
        if not isinstance(loop, ast.For) or frame.f_lineno >= loop.body[0].lineno:  # not at its head
            continue
        count = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else None
        if isinstance(count, ast.Name) and _calls_enumerate(loop.iter):
            for test in _tests_that_leave(loop.body):
                if any(isinstance(name, ast.Name) and name.id == count.id for name in ast.walk(test)):
                    return f"`if {ast.unparse(test)}` of line {test.lineno}"
    return ""


def _calls_enumerate(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Name) and part.id == "enumerate" for part in ast.walk(node))


def _tests_that_leave(body: list[ast.stmt]) -> Iterator[ast.expr]:
    """The conditions of each `if` whose block leaves the loop."""
    for statement in body:
        if isinstance(statement, ast.If):
            if any(isinstance(inner, (ast.Break, ast.Return)) for inner in statement.body):
                yield statement.test
            yield from _tests_that_leave([*statement.body, *statement.orelse])
        elif isinstance(statement, (ast.With, ast.Try)):
            yield from _tests_that_leave(statement.body)
