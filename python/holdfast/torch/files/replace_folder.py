"""Replaces an old folder by a finished new one, so that a whole one can be found at all times.

  1. The new folder is whole and durable, under another name beside the old one.
  2. One system call exchanges the two, if the file system can do that.   <- the new one counts
     If not, the old one is first renamed to .<name>.old, where find_folder() looks; then the new
     one gets its name.
  3. The folder around them is synced, and then the old one is removed.

After a crash, find_folder() finds the old or the new one, and either is whole.
"""

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

_Path = str | PathLike[str]
_HERE = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE
# The file system, or the kernel, cannot exchange two names.
_UNKNOWN = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def replace_folder(made: Path, target: Path) -> None:
    """Puts `made` at `target`, durably. The old folder may be at `made` afterwards."""
    if not os.path.lexists(target):
        os.rename(made, target)
    elif not _exchange(made, target):
        aside = _old_name(target)
        remove_path(aside)
        os.rename(target, aside)
        os.rename(made, target)
    sync_folder(target.parent)
    remove_path(_old_name(target))


def find_folder(target: _Path) -> _Path:
    """Where the folder is: at its name, or at the name of an old one after a crash."""
    aside = _old_name(Path(target))
    return aside if not os.path.lexists(target) and os.path.lexists(aside) else target


def remove_path(target: Path) -> None:
    """Removes a file or folder, if it is there."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def remove_folder(target: Path) -> None:
    """Removes the folder wherever find_folder() would find it.

    The old one goes first: alone, it would be found.
    """
    remove_path(_old_name(target))
    remove_path(target)


@contextmanager
def create_folder_durably(folder: Path) -> Iterator[None]:
    """Makes the folder and those above it. When the block ends, their names are durable."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    yield
    for path in new:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes the names in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(one: Path, two: Path) -> bool:
    """Exchanges two names in one call. False if the system cannot do that."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_HERE, os.fsencode(one), _HERE, os.fsencode(two), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNKNOWN:
        return False
    raise OSError(number, os.strerror(number), str(two))


def _old_name(target: Path) -> Path:
    return target.parent / f".{target.name}.old"
