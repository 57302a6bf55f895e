"""What a Checkpointer tells the user while training runs, on stderr or in the log "holdfast".

By default there are warnings, one line at resume and one at the end, from rank 0. With
`verbose=True`, or the environment variable HOLDFAST_LOG=info, there is also a line for each save.
With `verbose=False`, or HOLDFAST_LOG=warning, there are only warnings. A program that has set up
logging for INFO gets all lines there, whatever `verbose` says. The other levels of logging are
taken for the nearest of the two, and a word that is none changes nothing but warns.
"""

import logging
import os
import sys
from typing import Any

_log = logging.getLogger("holdfast")

UNKNOWN_OPTIMIZER = ("an optimizer that the Checkpointer was not given has updated the model: such "
                     "steps are not saved; expected Checkpointer(..., optimizer=optimizer), made "
                     "again if the optimizer is a new one")
NO_HOOK = ("no hook tells of the optimizer's updates (it is no torch optimizer, or a CUDA graph "
           "replays its steps): each step() is taken for the end of an update, and every save waits "
           "until it is copied")
PENDING_GRADIENTS = ("gradients have waited for an update for %d calls of step(): this save is made in "
                     "the middle of that update, and includes the gradients")

_LEVELS = {"": None, "notset": True, "debug": True, "trace": True, "verbose": True, "info": True,
           "warning": False, "warn": False, "error": False, "critical": False, "fatal": False}


_warned_names: set[str] = set()  # values of HOLDFAST_LOG that a warning was given for


class Messages:
    """The lines of one rank."""

    def __init__(self, rank: int, verbose: bool | None) -> None:
        """TypeError if `verbose` asks for what does not exist."""
        if verbose not in (None, True, False):
            raise TypeError(f"verbose={verbose!r}; expected True, False or None")
        self.rank = rank
        self._warned: set[str] = set()  # warnings that are given only once
        self._verbose = _level_from_environment() if verbose is None else verbose

    def tell(self, text: str) -> None:
        """A line that the user sees unless only warnings are wanted."""
        self._show(text, self._verbose is not False)

    def detail(self, text: str) -> None:
        """A line that the user sees only on request."""
        self._show(text, self._verbose is True)

    def warn_once(self, text: str, *values: Any) -> None:
        """A warning that is given only once, whatever the values in it are."""
        if text not in self._warned:
            self._warned.add(text)
            _log.warning(text, *values)

    def _show(self, text: str, wanted: bool) -> None:
        if _log.isEnabledFor(logging.INFO) and _log.hasHandlers():
            _log.info("%s", text)
        elif wanted and self.rank == 0:
            print(f"holdfast: {text}", file=sys.stderr, flush=True)


def _level_from_environment() -> bool | None:
    name = os.environ.get("HOLDFAST_LOG", "").strip()
    if name.lower() not in _LEVELS and name not in _warned_names:
        _warned_names.add(name)  # a program may make many Checkpointers
        _log.warning("HOLDFAST_LOG=%s is ignored; expected info or warning", name)
    return _LEVELS.get(name.lower())
