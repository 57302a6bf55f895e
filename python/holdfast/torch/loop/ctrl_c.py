"""Ctrl-C in a training script: the first one saves, and a second one ends the script at once.

The first Ctrl-C (SIGINT) is noted, and the next call of step() saves and raises KeyboardInterrupt, so
that `except KeyboardInterrupt` and `finally` in the script do what they have always done. Python's own
handler is installed again meanwhile: a second Ctrl-C raises at once, wherever the script is.

Before the first step and after close() there is nothing to save, and Ctrl-C does what it always does.
A handler that the program has installed itself is left alone, and so are notebooks and the
interactive interpreter, where Ctrl-C ends a cell or a line and not the training.
"""

import os
import signal
import sys
import threading
import weakref
from types import FrameType
from typing import Any

import torch

_TEXT = (b"\nholdfast: Ctrl-C: the next ck.step() saves and then ends the training; a second Ctrl-C ends "
         b"it at once, without a save\n")

_listening: "weakref.WeakSet[CtrlC]" = weakref.WeakSet()  # one for each open Checkpointer
_process = 0  # the process that has installed the handler


class CtrlC:
    """Whether the user has pressed Ctrl-C since the first step."""

    def __init__(self, wanted: bool, rank: int) -> None:
        self.is_armed = False  # a step was made: from then on there is something to save
        self.is_asked = False  # Ctrl-C was pressed, and no step() has seen it yet
        self.is_spokesman = rank == 0
        self._wanted = wanted
        self._listen()

    def listen_again(self) -> None:
        """Forgets a Ctrl-C that was acted upon: the script may go on, and the next one is a first."""
        self.is_asked = False
        self._listen()

    def raise_if_asked(self) -> None:
        """KeyboardInterrupt if Ctrl-C was pressed and no step came after it."""
        if self.is_asked:
            self.is_asked = False
            raise KeyboardInterrupt

    def close(self) -> None:
        """Installs Python's own handler again, if ours is there and no Checkpointer needs it."""
        self._wanted = False
        _listening.discard(self)
        if not _listening and _is_main_thread() and signal.getsignal(signal.SIGINT) is _handle:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _listen(self) -> None:
        global _process
        if not self._wanted or not _is_main_thread() or _is_interactive():
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _handle)
            _process = os.getpid()
        _listening.add(self)


def _handle(number: int, frame: FrameType | None) -> None:
    """Notes a first Ctrl-C. Python calls it between two operations of the main thread."""
    if torch.utils.data.get_worker_info() is not None:
        # The terminal sends Ctrl-C to loader workers, too. The step under way may still need them,
        # and they end with the process that has started them.
        signal.signal(number, signal.default_int_handler)
        return
    asked = [one for one in _listening if one.is_armed] if os.getpid() == _process else []
    if not asked:
        signal.default_int_handler(number, frame)
    signal.signal(number, signal.default_int_handler)
    for one in asked:
        one.is_asked = True
    if any(one.is_spokesman for one in asked):
        os.write(2, _TEXT)  # print() may be what the signal has interrupted


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _is_interactive() -> bool:
    """True in a notebook, in IPython and in Python's own interpreter."""
    ipython: Any = sys.modules.get("IPython")
    return hasattr(sys, "ps1") or (ipython is not None and ipython.get_ipython() is not None)
