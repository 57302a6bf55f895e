"""What a folder has at one moment: its files with their bytes, its folders and links."""

import contextlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """A file (data), a folder (neither), or a symbolic link (target)."""

    data: bytes | None = None
    target: str | None = None
    inode: int = 0  # two names of one file have the same
    changed: int = 0  # its time, in nanoseconds: some engines look for the newest file

    def __eq__(self, other: object) -> bool:
        """Times and inodes are no difference."""
        return isinstance(other, Entry) and (self.data, self.target) == (other.data, other.target)

    def with_data(self, data: bytes) -> "Entry":
        return replace(self, data=data, inode=0)


Tree = dict[str, Entry]  # by the path relative to the folder


def read_tree(folder: Path, before: Mapping[str, Entry] | None = None) -> Tree:
    """Reads a folder. Equal files of an earlier tree are used again, so that they are in memory once."""
    tree: Tree = {}
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(base, name)
            with contextlib.suppress(FileNotFoundError):
                entry = _read_entry(path)
                key = os.path.relpath(path, folder)
                old = (before or {}).get(key)
                tree[key] = old if old == entry and old.changed == entry.changed else entry
    return tree


def _read_entry(path: str) -> Entry:
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        return Entry(target=os.readlink(path))
    if not stat.S_ISREG(found.st_mode):
        return Entry()
    return Entry(data=Path(path).read_bytes(), inode=found.st_ino, changed=found.st_mtime_ns)


def write_tree(tree: Tree, folder: Path) -> None:
    """Makes a new folder with these contents."""
    folder.mkdir(parents=True)
    names: dict[int, Path] = {}
    for name in sorted(tree):  # a folder comes before what is in it
        entry, path = tree[name], folder / name
        if entry.target is not None:
            path.symlink_to(entry.target)
        elif entry.data is None:
            path.mkdir(parents=True, exist_ok=True)
        elif entry.inode and entry.inode in names and names[entry.inode].read_bytes() == entry.data:
            path.hardlink_to(names[entry.inode])
        else:
            path.write_bytes(entry.data)
            os.utime(path, ns=(entry.changed, entry.changed))
            names.setdefault(entry.inode, path)
