"""Measures how fast the user's own files are indexed, read and mounted, beside ways without Holdfast.

    files_bench.py [--bytes N] [--rounds N] [--parts PART,...] [--folder PATH] [--json FILE] [--doc]

    native  indexing beside a sequential read, and a full shuffle beside bare preads on as many threads
            (bench/corpus_bench.cpp); how long 10^8 windows take to open, and to find a batch in
    loader  holdfast.data.loader(Files(...)) without workers, beside a torch DataLoader with 2 workers
            whose dataset seeks and reads a line
    mount   the files of `holdfast mount`, read one after the other, beside the data file itself; how long
            it takes to list the files of 10^8 windows

The data are lines of 1 KiB of JSONL. "cold" means that the page cache was dropped before, which needs
root; on a virtual machine its host may still have the file. --doc makes the section of
bench/results/README.md from bench/results/files.json, and measures nothing.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from files_page import BATCH, judge, write_page
from measuring.disk import forget_all
from measuring.figures_file import Figures
from measuring.options import parser
from measuring.paired import in_turns
from measuring.results import Bars, progress

import holdfast
from holdfast.data import Files, loader

BUILD = Path(holdfast._native.__file__).parents[2]
RESULTS = Path(__file__).resolve().parent / "results/files.json"
LINE = 1024
BATCHES = {"cold": 100, "cached": 1000}
PARTS = ("native", "loader", "mount")
USUAL = PARTS[1:]  # make bench calls corpus_bench by itself


class Lines(torch.utils.data.Dataset):
    """The lines of a file as most people read them: where each begins is known."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, None
        self._begins = range(0, path.stat().st_size, LINE)

    def __len__(self) -> int:
        return len(self._begins)

    def __getitem__(self, index: int) -> bytes:
        if self._file is None:
            self._file = self._path.open("rb")
        self._file.seek(self._begins[index])
        return self._file.readline()


def write_lines(path: Path, size: int) -> None:
    with path.open("wb") as file:
        for line in range(size // LINE):
            text = b'{"n": %d, "text": "' % line
            file.write(text + bytes([97 + line % 26]) * (LINE - 3 - len(text)) + b'"}\n')


def read_all(paths: list[Path]) -> tuple[int, float]:
    """Reads files one after the other. Returns the bytes and the seconds."""
    block, total = memoryview(bytearray(1 << 20)), 0
    start = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(block):
                total += count
    return total, time.perf_counter() - start


def native(given: argparse.Namespace, folder: Path) -> dict:
    """What bench/corpus_bench.cpp measures."""
    told = folder / "native.json"
    subprocess.run([BUILD / "bench/corpus_bench", "--bytes", str(given.bytes), "--rounds", str(given.rounds),
                    "--samples", str(min(50_000, given.bytes // LINE // given.rounds)), "--folder", folder,
                    "--json", told], stdout=sys.stderr, check=False)  # fmt: skip
    seen = json.loads(told.read_text())
    del seen["run"]  # all parts have a machine
    return seen


def of_loader(given: argparse.Namespace, folder: Path) -> dict:
    """Samples a second of both loaders, in each round, cold and cached."""
    path, seen = folder / "lines.jsonl", {}
    write_lines(path, given.bytes)
    files, lines = Files(path), Lines(path)
    seeds = itertools.count()
    for cache in ("cold", "cached"):
        most = min(BATCHES[cache], len(lines) // BATCH - 2)

        def rate(make: Callable[[], Iterator], cache: str = cache, most: int = most) -> float:
            if cache == "cold":
                forget_all()
            batches = make()
            next(batches)  # a worker begins before its first batch
            start = time.perf_counter()
            for _ in range(most):
                next(batches)
            return most * BATCH / (time.perf_counter() - start)

        read_all([path])
        seen[cache] = in_turns({
            "holdfast": lambda: rate(lambda: iter(loader(files, BATCH, seed=next(seeds), epochs=1))),
            "torch": lambda: rate(lambda: iter(torch.utils.data.DataLoader(
                lines, BATCH, shuffle=True, num_workers=2))),
        }, given.rounds)  # fmt: skip
    return seen


@contextmanager
def mounted(path: Path, at: Path, *words: str) -> Iterator[list[Path]]:
    """The parts of one worker that reads all of the file."""
    program = subprocess.Popen([BUILD / "bin/holdfast", "mount", path, at, "--batch", str(BATCH), *words],
                               stdout=subprocess.PIPE, text=True)
    try:
        if "unmounts" not in program.stdout.readline():
            raise SystemExit("files_bench: holdfast mount has failed; --parts leaves it out")
        yield sorted((at / "from-0-of-1/worker-0").glob("part-*"))
    finally:
        program.terminate()
        program.wait()


def mount(given: argparse.Namespace, folder: Path) -> dict:
    """Bytes a second, in each round: the file itself, and its mounts. The file is in the page cache."""
    path, at = folder / "lines.jsonl", folder / "mount"
    write_lines(path, given.bytes)
    Files(path)
    read_all([path])

    def rate(*words: str, times: int = 1) -> float:
        with mounted(path, at, *words) as parts:
            for _ in range(times):
                total, seconds = read_all(parts)
        assert total == given.bytes // LINE * LINE, total
        return total / seconds

    def raw() -> float:
        total, seconds = read_all([path])
        return total / seconds

    return {**in_turns({"raw": raw, "mount": lambda: rate("--no-shuffle"), "shuffled": rate,
                        "again": lambda: rate("--no-shuffle", times=2)}, given.rounds),
            "listed": [list_windows(folder) for _ in range(given.rounds)]}  # fmt: skip


def list_windows(folder: Path) -> float:
    """The seconds that it takes to list one worker's files of 10^8 windows, on a fresh mount."""
    path = folder / "windows.bin"
    if not path.exists():
        with path.open("wb") as file:
            file.truncate(10**8)
    with mounted(path, folder / "windows", "--dtype", "u8", "--context", "1"):
        start = time.perf_counter()
        names = os.listdir(folder / "windows/from-54321-of-7/worker-3")
        seconds = time.perf_counter() - start
    assert len(names) == 383, len(names)
    return seconds


def measure(given: argparse.Namespace) -> dict:
    figures = Figures(given.json)
    for part in given.parts:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            progress(f"{part} ...")
            seen = MEASURES[part](given, Path(folder))
        figures.keep(part, seen)
    figures.seen["bytes"], figures.seen["rounds"] = given.bytes, given.rounds
    figures.write()
    return figures.seen


MEASURES = {"native": native, "loader": of_loader, "mount": mount}


def parse() -> argparse.Namespace:
    made = parser(__doc__, bytes=2_000_000_000, rounds=3, folder=".", json=None)
    can_mount = os.access("/dev/fuse", os.R_OK | os.W_OK)
    made.add_argument("--parts", default=",".join(USUAL if can_mount else USUAL[:1]))
    made.add_argument("--doc", action="store_true",
                      help="write bench/results/README.md from bench/results/files.json, and measure nothing")
    given = made.parse_args()
    given.parts = given.parts.split(",")
    if unknown := [one for one in given.parts if one not in PARTS]:
        made.error(f"--parts {unknown[0]}; expected some of {', '.join(PARTS)}")
    return given


def main() -> int:
    given = parse()
    if given.doc:
        write_page(json.loads(RESULTS.read_text()))
        return 0
    bars = Bars()
    judge(measure(given), bars)
    return 0 if bars.passed else 1


if __name__ == "__main__":
    sys.exit(main())
