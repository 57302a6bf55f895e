"""Ends a process that was asked to stop: its state stays in memory for the next ones, or is saved."""

import logging
import os
from collections.abc import Callable
from os import PathLike
from typing import Any, NoReturn

from holdfast import _native
from holdfast._native import SaveHandle
from holdfast.launch.worker_identity import STOPPED
from holdfast.torch.loop.closing import Closing
from holdfast.torch.loop.saves import Saves

SHARED_MEMORY = "/dev/shm"
CTRL_C = "Ctrl-C"

_log = logging.getLogger("holdfast")


class Stopping:
    """`folder` is where the state stays in memory, or None. `begin` does what comes before a save,
    and returns the loss as a number; `save` saves."""

    def __init__(self, saves: Saves, closing: Closing, folder: str | None,
                 begin: Callable[[int, Any], float | None], save: Callable[..., SaveHandle]) -> None:
        self._saves, self._closing, self._folder = saves, closing, folder
        self._ctrl_c = closing.ctrl_c
        self._begin, self._save = begin, save

    def due(self, job: _native.Job, step: int, updated: bool,
            loss: tuple[int, float] | None) -> tuple[str, str] | None:
        """What is due after the step, as the job decides it, or a last save after Ctrl-C.

        `loss` is one that has become known, with its step.
        """
        self._ctrl_c.is_armed = True
        if self._ctrl_c.is_asked and not self._closing.is_alone:
            job.ask_to_stop(CTRL_C)
        due = job.due(step, updated, loss)
        if self._ctrl_c.is_asked and self._closing.is_alone:
            # The job itself is not asked to stop: a script that catches KeyboardInterrupt may go on.
            return due if due is not None and due[0] == "stop" else ("stop", CTRL_C)
        return due

    def stop(self, step: int, loss: Any, why: str, *, automatic: bool = False,
             with_gradients: bool = False, code: int = STOPPED) -> NoReturn:
        """Keeps the state of the step, closes the job, and ends the process with the code."""
        if self._folder is not None:
            self._leave_in_memory(step, loss, why, with_gradients, code)
        handle = self._save(step, loss, why, automatic=automatic, with_gradients=with_gradients)
        if self._ctrl_c.is_asked:
            self._saves.wait_until_done()  # a second Ctrl-C ends this wait
        # A torn save is made again by all ranks: replicas were seen to differ.
        self._saves.wait_stopped(handle, lambda: self._save(step, None, why))
        if why != CTRL_C or not self._closing.is_alone:
            self._closing.close()
        _log.warning("stopped after step %d, which is saved: %s", step, why)
        raise self._end(step, code)

    def _end(self, step: int, code: int) -> BaseException:
        """What ends the process: after Ctrl-C what it always raises, in an orderly way."""
        if not self._ctrl_c.is_asked:
            return SystemExit(code)
        self._ctrl_c.listen_again()
        self._closing.expected = KeyboardInterrupt(f"step {step} is kept")
        return self._closing.expected

    def leave(self, step: int, why: str, code: int) -> NoReturn:
        """Keeps what is done, because the job cannot go on, and ends the process."""
        self.stop(step, None, why, code=code)

    def _leave_in_memory(self, step: int, loss: Any, why: str, with_gradients: bool,
                         code: int) -> None:
        """Ends the process, or returns with a warning if the state cannot stay in memory."""
        newest = self._begin(step, loss)
        try:
            folder = self._saves.hand_over(step, newest, with_gradients=with_gradients)
        except Exception as error:  # the same on all ranks
            _log.warning("step %d is saved to disk, as it cannot stay in memory: %s", step, error)
            return
        try:
            self._closing.close()
        except Exception as error:  # an earlier save failed; the state in memory replaces it
            _log.warning("an earlier save has failed: %s", error)
        _log.warning("stopped after step %d, which is left in memory (%s) and not on disk: %s",
                     step, folder, why)
        raise self._end(step, code)


def memory_folder(handover: bool | str | PathLike[str]) -> str | None:
    """The folder that `handover=` means; None without one. TypeError for what is none."""
    if handover is True:
        return SHARED_MEMORY
    if handover is False:
        return None
    if not isinstance(handover, str | PathLike) or not os.fspath(handover):
        raise TypeError(f"handover={handover!r}; expected True, False or a folder in memory")
    return os.path.abspath(os.path.expanduser(handover))
