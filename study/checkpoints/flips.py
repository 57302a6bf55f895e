"""E7: one bit of a saved checkpoint flips. Does the engine notice?

The newest checkpoint is a small one (states.py). A flip lies in the bytes of a tensor, or anywhere in the files; bytes of a
tensor are found by their values, so that a compressed file has none.
"""

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from crash import judge_all
from engine import Engine
from forks import in_a_fork
from formats import files_of
from states import HARMLESS, LOST, NEWEST, NOTICED, PREVIOUS, REFUSES, SECOND, WRONG, make_state

WORDS = {NEWEST: HARMLESS, WRONG: WRONG, LOST: NOTICED, REFUSES: NOTICED, PREVIOUS: NOTICED}
Place = tuple[Path, int]  # a file relative to the folder, and the bit
BATCH = 20  # copies of the folder that exist at a time


def measure(engine: Engine, work: Path, flips: int, seed: int = 0) -> dict[str, Any]:
    """The verdicts on so many flips in tensors, and on as many anywhere."""
    folder = work / "saved"
    try:
        folder.mkdir(parents=True)
        in_a_fork(lambda: engine.save(SECOND, engine.hold(make_state(SECOND)), folder), work)
        dice = random.Random(seed)
        found: dict[str, Any] = {"anywhere": _judge(engine, work, [anywhere(folder, dice) for _ in range(flips)])}
        if places := tensor_places(folder):
            found["tensors"] = _judge(engine, work, [inside(places, dice) for _ in range(flips)])
        return found
    finally:
        shutil.rmtree(work, ignore_errors=True)


def anywhere(folder: Path, dice: random.Random) -> Place:
    files = sorted(path for path in files_of(folder) if path.stat().st_size)
    chosen = dice.choices(files, [path.stat().st_size for path in files])[0]
    return chosen.relative_to(folder), dice.randrange(8 * chosen.stat().st_size)


def tensor_places(folder: Path) -> list[tuple[Path, int, int]]:
    """Where the bytes of each tensor are: file, offset, length. Those of a few bytes could be found by chance."""
    wanted = [array.tobytes() for array in make_state(SECOND).values() if array.nbytes >= 64]
    found = []
    for path in sorted(files_of(folder)):
        data = path.read_bytes()
        found += [(path.relative_to(folder), at, len(one)) for one in wanted if (at := data.find(one)) >= 0]
    return found


def inside(places: list[tuple[Path, int, int]], dice: random.Random) -> Place:
    path, at, length = dice.choices(places, [length for *_, length in places])[0]
    return path, 8 * at + dice.randrange(8 * length)


def _judge(engine: Engine, work: Path, flips: list[Place]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for first in range(0, len(flips), BATCH):
        folders = []
        for number, (name, bit) in enumerate(flips[first : first + BATCH]):
            folders.append(work / f"flip-{number}")
            shutil.copytree(work / "saved", folders[-1])
            flip(folders[-1] / name, bit)
        found.update(WORDS.get(verdict, verdict) for verdict, _ in judge_all(engine, folders, work))
        for folder in folders:
            shutil.rmtree(folder)
    return dict(found)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
