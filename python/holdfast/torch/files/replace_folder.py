"""How a finished folder takes the place of an old one, with a whole one there at all times.

  1. The new one is whole and durable, under another name beside the old one.
  2. The two change places in one call, where the file system knows that.   <- new from here
     Else the old one is first renamed to .<name>.old, where found() sees it; then the new
     one gets its name, and the old one is removed.
  3. The folder that they are in is synced, and then what is old may go.

A crash leaves the old or the new one to be found, and either is whole.
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
_UNKNOWN = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # to the file system, or the kernel


def take_place(made: Path, target: Path) -> None:
    """`made` is at `target` when it returns, durably; what was there may be at `made`."""
    if not os.path.lexists(target):
        os.rename(made, target)
    elif not _exchange(made, target):
        aside = _aside(target)
        remove(aside)
        os.rename(target, aside)
        os.rename(made, target)
    sync(target.parent)
    remove(_aside(target))


def found(target: _Path) -> _Path:
    """Where it is: at its name, or aside if a crash has left it there."""
    aside = _aside(Path(target))
    return aside if not os.path.lexists(target) and os.path.lexists(aside) else target


def remove(target: Path) -> None:
    """Removes a file or folder, if it is there."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def forget(target: Path) -> None:
    """Removes it, wherever found() would see it; the one aside first, or it would be found."""
    remove(_aside(target))
    remove(target)


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Makes it and those above; at the end, the names of new ones are durable."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    yield
    for path in new:
        sync(path.parent)


def sync(folder: Path) -> None:
    """Makes names in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(one: Path, two: Path) -> bool:
    """False if the system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_HERE, os.fsencode(one), _HERE, os.fsencode(two), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNKNOWN:
        return False
    raise OSError(number, os.strerror(number), str(two))


def _aside(target: Path) -> Path:
    return target.parent / f".{target.name}.old"
