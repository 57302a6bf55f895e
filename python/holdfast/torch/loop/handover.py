"""Where a job that is asked to stop leaves its state in memory, for the next processes."""

import os
from os import PathLike

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
