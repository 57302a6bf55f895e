"""Where a job that is asked to stop leaves its state in memory, for the next processes."""

import logging
import os
from os import PathLike

from holdfast.torch.loop.closing import Closing
from holdfast.torch.loop.saves import Saves

_log = logging.getLogger("holdfast")

SHARED_MEMORY = "/dev/shm"


def memory_folder(handover: bool | str | PathLike[str]) -> str | None:
    """The folder that `handover=` means; None without one. TypeError for what is none."""
    if handover is True:
        return SHARED_MEMORY
    if handover is False:
        return None
    if not isinstance(handover, str | PathLike) or not os.fspath(handover):
        raise TypeError(f"handover={handover!r}; expected True, False or a folder in memory")
    return os.path.abspath(os.path.expanduser(handover))


def leave_in_memory(saves: Saves, closing: Closing, step: int, loss: float | None, why: str,
                    with_gradients: bool, code: int) -> None:
    """Leaves the state of a step in memory and ends the process with the code; returns, with a
    warning, if that is not possible."""
    try:
        folder = saves.hand_over(step, loss, with_gradients=with_gradients)
    except Exception as error:  # the same on all ranks
        _log.warning("step %d is saved to disk, as it cannot stay in memory: %s", step, error)
        return
    try:
        closing.close()
    except Exception as error:  # of an earlier save, which the state in memory replaces
        _log.warning("an earlier save has failed: %s", error)
    _log.warning("stopped after step %d, which is left in memory (%s) and not on disk: %s",
                 step, folder, why)
    raise SystemExit(code)
