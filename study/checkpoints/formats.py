"""E2: how many bytes a save writes, what it and a load take, and the memory that they need.

A save is timed until it returns ("call"), and until a sync of all its files has returned, too ("synced"). A load is cold:
the files are dropped from the page cache first. What it returns is compared with what was saved, bit for bit.
"""

import shutil
from pathlib import Path
from typing import Any

import models
import states
from engine import Engine, LoadOne, Save
from forks import in_a_fork, peak_of, seconds_of
from measuring.disk import forget, sync
from states import State

LONG, FEW = 2.0, 3  # a save that takes more seconds is repeated only so often, but for the state whose times are told


def measure(engine: Engine, work: Path, model: str, optimizer: str, rounds: int) -> dict[str, Any]:
    """`rounds`: how often a save and a load are timed."""

    is_told = (model, optimizer) == models.TIMED

    def all_of_it() -> dict[str, Any]:
        return _Measured(engine, work / "saved", models.make(model, optimizer)).run(rounds, is_told)

    try:
        return in_a_fork(all_of_it, work, seconds=1800)
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _Measured:
    def __init__(self, engine: Engine, folder: Path, state: State) -> None:
        self.engine, self.folder, self.state = engine, folder, state
        states.use(state)
        self.held = engine.hold(state)

    def run(self, rounds: int, is_told: bool) -> dict[str, Any]:
        """`is_told`: its times are, so that all rounds are made."""
        memory = {"save": peak_of(lambda: self.save(self.engine.save))}
        files = files_of(self.folder)
        found: dict[str, Any] = {"exact": models.bytes_of(self.state), "files": len(files), "memory": memory,
                                 "bytes": sum(path.stat().st_size for path in files)}  # fmt: skip
        memory["load"] = peak_of(lambda: found.update(equal=self.load_again()))
        times = [self.time_all()]
        while len(times) < (rounds if is_told or times[0]["synced"] < LONG else min(rounds, FEW)):
            times.append(self.time_all())
        found["seconds"] = {name: [one[name] for one in times] for name in times[0]}
        if self.engine.load_one:
            found["one_tensor"] = self.time_one(self.engine.load_one)
        pairs = rounds if is_told else FEW if times[0]["synced"] < LONG else 1
        return found | {"without": {part: self.leave_out(save, pairs) for part, save in self.engine.without.items()}}

    def save(self, save: Save) -> None:
        self.time_save(save)

    def load_again(self) -> bool:
        return states.is_same(self.engine.load(self.folder), self.state)

    def time_save(self, save: Save) -> float:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        return seconds_of(lambda: save(1, self.held, self.folder))

    def time_all(self) -> dict[str, float]:
        call = self.time_save(self.engine.save)
        synced = call + seconds_of(lambda: sync(self.folder))
        forget(self.folder)
        return {"call": call, "synced": synced, "load": seconds_of(lambda: self.engine.load(self.folder))}

    def time_one(self, load_one: LoadOne) -> dict[str, Any]:
        """A tensor in the middle, alone."""
        name = list(self.state)[len(self.state) // 2]
        forget(self.folder)
        kept: list[Any] = []
        seconds = seconds_of(lambda: kept.append(load_one(self.folder, name)))
        return {"seconds": seconds, "equal": states.is_same({name: kept[0]}, {name: self.state[name]})}

    def leave_out(self, save: Save, pairs: int) -> dict[str, Any]:
        """Call and bytes without a part of the work, and beside it the whole work at the same time."""
        ways = [self.engine.save, save]
        found = []
        for number in range(pairs):  # every second pair begins with the other one
            turns = ways if number % 2 == 0 else ways[::-1]
            times = [self.time_save(one) for one in turns]
            found.append(times if number % 2 == 0 else times[::-1])
        self.time_save(save)
        return {"pairs": found, "bytes": sum(path.stat().st_size for path in files_of(self.folder))}


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
