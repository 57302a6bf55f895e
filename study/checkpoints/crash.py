"""E6: what kills, torn writes, power cuts, full disks and lost ranks leave of a save."""

import json
import os
import shutil
import signal
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import damage
from engine import Engine
from recorder import Recording, record
from states import CRASHES, FIRST, HANGS, LOST, NEWEST, REFUSES, SECOND, OlderIsWhole, judge, make_state
from trees import Tree, read_tree, write_tree

SECONDS = 60  # after which a save or a load hangs
KINDS: dict[str, Callable[[Recording], list[Tree]]] = {
    "kill": damage.kills, "torn": damage.torn, "power": damage.power_cuts}  # fmt: skip
LIED = "said done, and it is not there"


def measure(engine: Engine, work: Path, most_deaths: int = 1000) -> dict[str, Any]:
    """All verdicts of an engine. `work` is a folder for its files, and is removed.

    most_deaths  at how many of its calls each of several ranks is killed
    """
    shutil.rmtree(work, ignore_errors=True)
    try:
        return _Experiment(engine, work, most_deaths).run()
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _Experiment:
    def __init__(self, engine: Engine, work: Path, most_deaths: int) -> None:
        self.engine, self.work, self.most_deaths = engine, work, most_deaths
        self.folder = work / "saved"
        self.folder.mkdir(parents=True)
        self.examples: dict[str, str] = {}
        self.made = 0  # folders so far, for their names

    def run(self) -> dict[str, Any]:
        first = self.save(FIRST)
        if any(first.codes):
            return {"failed": f"its first save ended with {first.codes}"}
        start = read_tree(self.folder)
        recording = self.save(SECOND)
        if any(recording.codes):
            return {"failed": f"its second save ended with {recording.codes}"}
        cell: dict[str, Any] = {
            "calls": len(recording.calls), "writes": recording.writes,
            "names": dict(sorted(Counter(call.name for call in recording.calls).items())),
            "unseen": sorted(recording.unseen), "after": self.judge("after", [recording.last])}  # fmt: skip
        for kind, make in KINDS.items():
            cell[kind] = self.judge(kind, make(recording))
        cell["full"] = self.fill_disk(start, recording.writes)
        if self.engine.ranks > 1:
            cell["rank"] = self.lose_ranks(start, recording)
        return cell | {"examples": self.examples}

    def save(self, step: int, **how: Any) -> Recording:
        port = free_port()
        works = [lambda rank=rank: self._save(step, rank, port) for rank in range(self.engine.ranks)]
        return record(works, self.folder, seconds=SECONDS, **how)

    def _save(self, step: int, rank: int, port: int) -> None:
        """In a process of its own."""
        write_to_log(self.work)
        if self.engine.ranks > 1:
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank),
                           "WORLD_SIZE": str(self.engine.ranks)}  # fmt: skip
        self.engine.save(step, self.engine.hold(make_state(step)), self.folder)

    def fill_disk(self, start: Tree, writes: int) -> dict[str, int]:
        """The disk is full from some write on. A save that says done must be there."""
        found: Counter[str] = Counter()
        for after in sorted({0, 1, writes // 2, max(0, writes - 1)}):
            codes, verdict = self.again(start, "full", full_after=after)
            found[verdict if any(codes) or verdict == NEWEST else LIED] += 1
        return dict(found)

    def lose_ranks(self, start: Tree, recording: Recording) -> dict[str, int]:
        """One rank is killed at each of its calls in turn, and the others later."""
        calls = Counter(call.rank for call in recording.calls)
        return dict(Counter(self.again(start, "rank", kill=(rank, number))[1]
                            for rank in range(self.engine.ranks)
                            for number in some_of(calls[rank], self.most_deaths)))

    def again(self, start: Tree, kind: str, **how: Any) -> tuple[list[int], str]:
        """Saves state 2 over state 1 once more, and judges what is there then."""
        shutil.rmtree(self.folder)
        write_tree(start, self.folder)
        recording = self.save(SECOND, **how)
        return recording.codes, next(iter(self.judge(kind, [recording.last])))

    def judge(self, kind: str, trees: list[Tree]) -> dict[str, int]:
        """How many of the states end in each verdict."""
        folders = []
        for tree in trees:
            self.made += 1
            folders.append(self.work / f"{self.made:04}")
            write_tree(tree, folders[-1])
        found: Counter[str] = Counter()
        for verdict, why in judge_all(self.engine, folders, self.work):
            found[verdict] += 1
            if why:
                self.examples.setdefault(f"{kind}: {verdict}", why)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        return dict(found)


def judge_all(engine: Engine, folders: list[Path], work: Path) -> list[tuple[str, str]]:
    """The verdict on each folder, and why. Engines load in processes of their own: they may crash or hang."""
    found: list[tuple[str, str]] = []
    out = work / "verdicts.jsonl"
    while len(found) < len(folders):
        process = os.fork()
        if process == 0:
            _judge_each(engine, folders[len(found):], out)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        found += [tuple(json.loads(line)) for line in out.read_text().splitlines()]
        if code:
            hangs = code == -signal.SIGALRM
            found.append((HANGS if hangs else CRASHES, f"after {SECONDS} s" if hangs else f"exit {code}"))
    return found


def _judge_each(engine: Engine, folders: list[Path], out: Path) -> None:
    """In a process of its own, which a crash or SIGALRM may end."""
    code = 1
    try:
        write_to_log(out.parent)
        with out.open("w") as lines:
            for folder in folders:
                signal.setitimer(signal.ITIMER_REAL, SECONDS)
                print(json.dumps(_judge_one(engine, folder)), file=lines, flush=True)
        code = 0
    finally:
        os._exit(code)


def _judge_one(engine: Engine, folder: Path) -> tuple[str, str]:
    try:
        return judge(engine.load(folder)), ""
    except OlderIsWhole as error:
        return REFUSES, _first_line(error)
    except BaseException as error:  # noqa: BLE001: a rival may fail in any way
        return LOST, _first_line(error)


def _first_line(error: BaseException) -> str:
    text = str(error.__cause__ or error)
    return f"{type(error.__cause__ or error).__name__}: {text.splitlines()[0][:100] if text else ''}"


def some_of(count: int, most: int) -> list[int]:
    """Up to `most` of the numbers 1 to count: the first ones, because the order of first writes decides what a lost
    rank leaves, and the last one."""
    return list(range(1, count + 1)) if count <= most else [*range(1, most), count]


def write_to_log(work: Path) -> None:
    """What an engine prints of its errors goes into a file: there are hundreds of them."""
    log = os.open(work / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
