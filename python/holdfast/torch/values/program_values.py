"""The variables of the training program: globals of the script, and locals of its running functions."""

import inspect
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

_MOST_FRAMES = 16
_OURS = ("holdfast", "torch")


def program_frames() -> Iterator[FrameType]:
    """The frames outside of Holdfast and torch that lead to here, the newest first."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        frame = frame.f_back
        if frame is None:
            return
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in _OURS:
            yield frame


def variables(frame: FrameType) -> dict[str, Any]:
    """The variables of a running function or module, by name.

    Before 3.13, Python makes a dict of a function's variables and keeps it, and with it all that they
    hold, as long as the function runs: it is emptied.
    """
    known = frame.f_locals
    found = dict(known)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13):
        known.clear()
    return found


def program_spaces() -> list[tuple[str, dict[str, Any]]]:
    """The variables of the script ("__main__"), and of its running functions ("train()") from outside in."""
    spaces = [("__main__", dict(vars(sys.modules["__main__"])))] if "__main__" in sys.modules else []
    spaces += [(f"{frame.f_code.co_name}()", variables(frame)) for frame in reversed(list(program_frames()))
               if frame.f_code.co_flags & inspect.CO_OPTIMIZED
               and "site-packages" not in frame.f_code.co_filename]
    return [(space, {name: one for name, one in held.items() if type(name) is str and name[:1] != "_"})
            for space, held in spaces]


def program_values() -> dict[str, Any]:
    """The same in one dict. Of two with one name, the outer one has it, and the inner one gets a number."""
    found: dict[str, Any] = {}
    for _, held in program_spaces():
        for name, one in held.items():
            if all(one is not found.get(free) for free in _numbered(name, found)):
                found[next(free for free in _numbered(name, found) if free not in found)] = one
    return found


def _numbered(name: str, found: dict[str, Any]) -> list[str]:
    """The name and its numbered forms that are taken, and the next one that is not."""
    forms = [name]
    while forms[-1] in found:
        forms.append(f"{name}~{len(forms) + 1}")
    return forms
