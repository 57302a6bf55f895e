"""Runs the study of flipped bits, keeps its compact results, and makes docs/corruption.md.

    python study/corruption/run.py [--scale 0.1] [--only 'role-*'] [--jobs 2]

Each campaign of cells.py is one `holdfast campaign run`, in a folder of its own below --work. What
was interrupted is continued, and a greater --scale adds trials to those that are there. Campaigns
with ranks run alone, the others side by side.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any

from cells import BASES, Cell, all_campaigns
from page import write_pages
from results import RESULTS, collect, write

ROOT = Path(__file__).resolve().parents[2]
# Relative to the root, so that a folder of campaigns can be moved to another checkout: a campaign
# is continued only with the same command.
SCRIPT = "examples/train_digits.py"
HOROVOD = ROOT / ".cache/horovod"
PROBES = 2  # trials of the first cell of each kind, by which the time of the rest is told
WORTH = 50  # trials above which it is worth to ask for that time


class Study:
    """Where the campaigns are, and how many trials each of them is to have."""

    def __init__(self, work: Path, program: Path, scale: float) -> None:
        self._work, self._program, self._scale = work.resolve(), program.resolve(), scale

    def trials(self, cell: Cell) -> int:
        return min(cell.trials, math.ceil(cell.trials * self._scale))

    def make_base(self, name: str) -> Path:
        """Trains the checkpoint from which cells start, unless it is there."""
        path = self._work / f"{name}.pt"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(".tmp")
            done = subprocess.run([sys.executable, SCRIPT, *BASES[name], "--save", fresh],
                                  check=True, env=environment(), cwd=ROOT,
                                  stdout=subprocess.PIPE, text=True)  # fmt: skip
            fresh.rename(path)
            say(f"{name}: {done.stdout.strip()}")
        return path

    def run(self, cell: Cell, most: int | None = None) -> None:
        """Runs the trials of a cell that are missing, or only `most` trials."""
        wanted = self.trials(cell)
        if most is not None:
            wanted = min(wanted, most)
        if len(self.seconds(cell)) >= wanted:
            return
        done = subprocess.run(self.command(cell, wanted), env=environment(), cwd=ROOT,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            words = (done.stderr or done.stdout).strip()[-2000:]
            raise RuntimeError(f"{cell.name}: ended with {done.returncode}; {words}")

    def command(self, cell: Cell, trials: int) -> list[str]:
        script = [python_name(), SCRIPT, "--serve", "--optimizer", cell.optimizer,
                  *cell.job.words]  # fmt: skip
        state = ["--state"] if cell.keeps_state else []
        plans = self.make_plans(cell)
        chosen = ["--plan", *plans] if plans else [*self.site_options(cell), "--bits", cell.bits]
        return [str(self._program), "campaign", "run", str(self.make_base(cell.base)), *chosen,
                "--checksums", "consistent", "--trials", str(trials), "-o",
                str(self._work / cell.name), *state, "--serve", "--", *script]  # fmt: skip

    def site_options(self, cell: Cell) -> list[str]:
        return [*cell.selection, "--flips", str(cell.flips), "--seed", str(cell.seed)]

    def make_plans(self, cell: Cell) -> list[str]:
        """The plans of a campaign that takes bits in turn, made unless they are there. All of them
        are made at once, because a campaign is continued only with the same plans."""
        folder = self._work / "plans" / cell.name
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{trial}.json" for trial in range(cell.trials if cell.turns else 0)]
        for trial, path in enumerate(paths):
            if not path.exists():
                subprocess.run(
                    [self._program, "inject", self.make_base(cell.base), *self.site_options(cell),
                     "--bits", str(trial % cell.turns), "--trial", str(trial), "--dry-run",
                     "--save-plan", path], check=True, stdout=subprocess.DEVNULL)  # fmt: skip
        return list(map(str, paths))

    def seconds(self, cell: Cell) -> list[float]:
        """How long each finished trial took."""
        try:
            lines = (self._work / cell.name / "trials.jsonl").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line)["seconds"] for line in lines if line.endswith("\n")]

    def left(self, cells: Iterable[Cell], jobs: int) -> str:
        """How many trials are left, and how long they will take."""
        cells = list(cells)
        trials, seconds = 0, 0.0
        for cell in cells:
            alike = [other for other in cells if other.job == cell.job]
            seen = [each for other in alike for each in self.seconds(other)]
            missing = max(0, self.trials(cell) - len(self.seconds(cell)))
            each = sum(seen) / len(seen) if seen else 0.0
            trials += missing
            seconds += missing * each / (jobs if cell.job.ranks == 1 else 1)
        return f"{trials:,} trials left, about {max(1, round(seconds / 60))} min"


def environment() -> dict[str, str]:
    paths = [str(HOROVOD), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(filter(None, paths))}


def python_name() -> str:
    """This Python. Relative to the root if it is inside of it."""
    path = Path(sys.executable)
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def say(text: str) -> None:
    print(text, flush=True)


def kinds(cells: Iterable[Cell]) -> list[Cell]:
    """The first cell of each way to train."""
    return list({cell.job: cell for cell in reversed(list(cells))}.values())


def run_all(cells: list[Cell], run: Callable[[Cell], None], done: Callable[[Cell], None],
            jobs: int) -> list[str]:
    """Runs all cells, those with ranks alone. Returns what failed."""
    failed: list[str] = []
    lock, stop = threading.Lock(), threading.Event()

    def one(cell: Cell) -> None:
        if stop.is_set():
            return
        try:
            run(cell)
        except (RuntimeError, subprocess.CalledProcessError, OSError) as error:
            with lock:
                failed.append(str(error))
                say(str(error))
        else:
            with lock:
                done(cell)

    for cell in cells:
        if cell.job.ranks > 1:
            one(cell)
    with ThreadPoolExecutor(jobs) as pool:
        try:
            list(pool.map(one, [cell for cell in cells if cell.job.ranks == 1]))
        except KeyboardInterrupt:
            stop.set()  # otherwise the pool would begin all other cells before it ends
            raise
    return failed


def describe_machine() -> dict[str, str]:
    horovod = metadata.distributions(path=[str(HOROVOD)])
    versions = {each.name: each.version for each in horovod if each.name == "horovod"}
    return {"CPU": platform.machine(), "cores": str(os.cpu_count()),
            "torch": metadata.version("torch"), **versions}  # fmt: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / ".cache/campaign",
                        help="the folder of the campaigns")
    parser.add_argument("--program", type=Path, default=ROOT / ".venv/bin/holdfast")
    parser.add_argument("--scale", type=float, default=1.0,
                        help="the share of the planned trials to run, above 0 and up to 1")
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of cells to run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(),
                        help="how many cells run side by side")
    parser.add_argument("--no-page", action="store_true", help="leave results and page alone")
    args = parser.parse_args()
    if not 0 < args.scale <= 1:
        parser.error(f"--scale: {args.scale}; expected a number above 0 and up to 1")
    if args.jobs < 1:
        parser.error(f"--jobs: {args.jobs}; expected at least 1")
    if not os.access(args.program, os.X_OK):
        parser.error(f"--program: {args.program} cannot be run; expected the holdfast command, "
                     "which `make build` makes")  # fmt: skip
    return args


def choose(patterns: list[str]) -> list[Cell]:
    cells = [cell for cell in all_campaigns() if any(fnmatch(cell.name, each) for each in patterns)]
    if any(cell.job.launcher == "horovod" for cell in cells) and not (HOROVOD / "built").exists():
        say("Horovod is not in .cache/horovod, where scripts/rivals.sh puts it; its cells are left "
            "out")
        cells = [cell for cell in cells if cell.job.launcher != "horovod"]
    return cells


def main() -> int:
    args = parse()
    cells, study = choose(args.only), Study(args.work, args.program, args.scale)
    if not cells:
        say(f"--only {' '.join(args.only)}: no cell has such a name")
        return 2
    for base in dict.fromkeys(cell.base for cell in cells):
        study.make_base(base)
    failed = []
    if sum(map(study.trials, cells)) > WORTH:
        failed = run_all(kinds(cells), lambda cell: study.run(cell, PROBES), lambda cell: None, 1)
    if not failed:
        say(f"{len(cells)} cells, {study.left(cells, args.jobs)}")
        failed = run_all(cells, study.run, lambda cell: say(
            f"{cell.name}: {len(study.seconds(cell))} of {cell.trials}; "
            f"{study.left(cells, args.jobs)}"), args.jobs)  # fmt: skip
    if not args.no_page:
        keep_results(args.work)
    return 1 if failed else 0


def keep_results(work: Path) -> None:
    """Writes results and page, unless results of more trials are there."""
    results, known = collect(work, describe_machine()), json.loads(RESULTS.read_text())
    if count_trials(results) < count_trials(known):
        say(f"{count_trials(results):,} trials are in {work}, and {RESULTS.name} has "
            f"{count_trials(known):,}; results and page are left alone")
        return
    write(results)
    write_pages(results)


def count_trials(results: dict[str, Any]) -> int:
    return sum(cell["trials"] for cell in results["cells"].values())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped; the same call continues")
        sys.exit(130)
