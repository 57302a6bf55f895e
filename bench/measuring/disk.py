"""The disk without any library: raw transfers, syncs, and the page cache."""

import mmap
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BLOCK = 16 << 20
Way = tuple[int, int]  # the bytes of a block, and how many threads


def sync(path: Path) -> None:
    """Calls fsync for a file, or for everything in a folder, as a careful user would."""
    for one in [*path.rglob("*"), path] if path.is_dir() else [path]:
        number = os.open(one, os.O_RDONLY)
        os.fsync(number)
        os.close(number)


def forget(folder: Path) -> None:
    """Removes the folder's files from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            number = os.open(path, os.O_RDONLY)
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(number)


def file_system(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The kind of file system that a folder is on, such as "ext4"; "" if the system does not tell it."""
    try:
        rows = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return ""
    path = folder.resolve()
    # A later mount hides an earlier one of the same place.
    on = [(len(row[1]), at, row[2]) for at, row in enumerate(rows) if path.is_relative_to(row[1].replace("\\040", " "))]
    return max(on)[2] if on else ""


def forget_all() -> None:
    """Drops the page cache, or says that this process may not."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError as error:
        print(f"  the page cache is kept: {error}", flush=True)


class Raw:
    """Raw transfers of so many bytes with O_DIRECT: one way of them, or the fastest of several."""

    def __init__(self, folder: Path, size: int, ways: list[Way]) -> None:
        self.path, self.size = folder / "raw", size
        self.memory = memoryview(mmap.mmap(-1, size // BLOCK * BLOCK))
        for at in range(0, len(self.memory), BLOCK):
            self.memory[at : at + BLOCK] = random.randbytes(BLOCK)
        self.writing = min(ways, key=self.write) if len(ways) > 1 else ways[0]
        self.reading = min(ways, key=self.read) if len(ways) > 1 else ways[0]

    def write(self, way: Way | None = None) -> float:
        """Seconds to write and sync a new file. A checkpoint also consists of new files."""
        self.path.unlink(missing_ok=True)
        number = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o644)
        start = time.perf_counter()
        self._each(way or self.writing,
                   lambda at, end: os.pwrite(number, self.memory[at:end], at))
        os.fdatasync(number)
        return self._took(start, number)

    def read(self, way: Way | None = None) -> float:
        """Seconds to read the file."""
        number = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        start = time.perf_counter()
        self._each(way or self.reading,
                   lambda at, end: os.preadv(number, [self.memory[at:end]], at))
        return self._took(start, number)

    def _each(self, way: Way, transfer: Callable[[int, int], int]) -> None:
        block, threads = way
        with ThreadPoolExecutor(threads) as pool:
            done = sum(pool.map(lambda at: transfer(at, at + block),
                                range(0, len(self.memory), block)))
        assert done == len(self.memory), done

    def _took(self, start: float, number: int) -> float:
        seconds = time.perf_counter() - start
        os.close(number)
        return seconds * self.size / len(self.memory)
