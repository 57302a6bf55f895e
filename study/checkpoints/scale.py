"""E3: several ranks train with the same state, and save it. Who writes, and how long do all of them wait?

rank-0  one rank saves, the others wait
all     each rank saves a full copy into a folder of its own, as ChainerMN does
parts   each rank saves its share of each tensor

Ranks are processes of this machine: beyond its cores they also wait for each other, and only bytes, files and syncs count,
so that a save there is timed once.
"""

import json
import multiprocessing
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import models
import states
from crash import free_port
from engine import Engine
from forks import in_a_fork, seconds_of
from formats import files_of
from measuring.disk import sync
from recorder import NotPermitted, record
from states import State


def measure(engine: Engine, work: Path, who: str, ranks: list[int], rounds: int = 1,
            state: Sequence[str] = models.TIMED) -> dict[str, Any]:
    found = {}
    cores = os.cpu_count() or 1
    for count in ranks:
        try:
            found[str(count)] = in_a_fork(lambda count=count: _Ranks(engine, work / "saved", who, count).run(
                state, rounds if count <= cores else 1), work, seconds=1800)  # fmt: skip
        finally:
            shutil.rmtree(work, ignore_errors=True)
        found[str(count)] |= count_syncs(engine, work, who, count)
    return {"ranks": found}


def count_syncs(engine: Engine, work: Path, who: str, count: int) -> dict[str, Any]:
    """Of a save of the small state, whose calls can be seen."""
    ranks = _Ranks(engine, work / "seen", who, count)
    ranks.state = states.make_state(states.FIRST)
    ranks.folder.mkdir(parents=True)
    try:
        seen = record([lambda rank=rank: ranks.save(rank) for rank in range(count)], ranks.folder)
        return {"syncs": Counter(call.syncs for call in seen.calls)[True]} if not any(seen.codes) else {}
    except NotPermitted:
        return {}
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _Ranks:
    def __init__(self, engine: Engine, folder: Path, who: str, count: int) -> None:
        self.engine, self.folder, self.who, self.count = engine, folder, who, count
        self.state: State = {}
        self.port = free_port()

    def run(self, state: Sequence[str], rounds: int) -> dict[str, Any]:
        """Seconds that all ranks wait, in each round, and what is on the disk then."""
        self.state = models.make(*state)
        states.use(self.state)
        context = multiprocessing.get_context("fork")
        self.barrier = context.Barrier(self.count, timeout=300)
        started = []
        for rank in range(self.count):
            process = os.fork()
            if process == 0:
                self._be(rank, rounds)
            started.append(process)
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in started]
        if any(codes):
            raise RuntimeError(f"its ranks ended with {codes}")
        files = files_of(self.folder)
        return {"seconds": json.loads((self.folder.parent / "seconds.json").read_text()), "files": len(files),
                "bytes": sum(path.stat().st_size for path in files)}  # fmt: skip

    def _be(self, rank: int, rounds: int) -> None:
        code = 1
        try:
            save = self.prepare(rank)
            self._time(rank, save)  # not counted: ranks connect in it
            seconds = [self._time(rank, save) for _ in range(rounds)]
            if rank == 0:
                (self.folder.parent / "seconds.json").write_text(json.dumps(seconds))
            code = 0
        finally:
            os._exit(code)

    def _time(self, rank: int, save: Any) -> float:
        """Until all bytes are on the disk: nobody trains meanwhile."""
        if rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
        self.barrier.wait()

        def work() -> None:
            save()
            if self.who == "all":
                sync(self.folder / str(rank))
            elif rank == 0 and self.who == "rank-0":
                sync(self.folder)
            self.barrier.wait()

        return seconds_of(work)

    def save(self, rank: int) -> None:
        self.prepare(rank)()

    def prepare(self, rank: int) -> Any:
        """What a rank does in a save."""
        if self.who == "rank-0":
            held = self.engine.hold(self.state) if rank == 0 else None
            return (lambda: self.engine.save(1, held, self.folder)) if rank == 0 else lambda: None
        held = self.engine.hold(self.state)
        if self.who == "all":

            def save() -> None:
                (self.folder / str(rank)).mkdir(exist_ok=True)
                self.engine.save(1, held, self.folder / str(rank))

            return save
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port), "RANK": str(rank),
                       "WORLD_SIZE": str(self.count)}  # fmt: skip
        assert self.engine.save_part is not None
        return lambda: self.engine.save_part(1, held, self.folder)  # type: ignore[misc]
