"""Runs the study of flipped bits, keeps its compact results, and makes docs/studies/corruption.md.

    python study/corruption/run.py [--scale 0.1] [--only 'role-*'] [--jobs 2] [--minutes 60]

Each campaign of cells.py is one `holdfast campaign run`, in a folder of its own below --work. What
was interrupted is continued, and a greater --scale adds trials to those that are there. As many
campaigns run side by side as there are cores for their ranks, the longest first. Results and page
keep what is known of cells that have more trials there than in --work.

A campaign is continued only on a machine like the one that began it. archive.py carries finished
campaigns from one machine to another.
"""

import argparse
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
from cells import BASES, Cell, Job, all_campaigns
from measuring.machines import processor
from measuring.options import parser
from other_frameworks import FRAMEWORKS, convert_base, export_start
from results import (
    Machine,
    collect,
    machine_note,
    machine_words,
    merge,
    read,
    read_machine,
    write,
)

ROOT = Path(__file__).resolve().parents[2]
# Relative to the root, so that a folder of campaigns can be moved to another checkout: a campaign
# is continued only with the same command.
SCRIPT = "examples/train_digits.py"
HOROVOD = ROOT / ".cache/horovod"
PROBES = 2  # trials of the first cell of each kind, by which the time of the rest is told
WORTH = 50  # trials above which it is worth to ask for that time
GRACES = (60, 15)  # seconds for a campaign to end after it was asked to once, and again


class Study:
    """Where the campaigns are, and how many trials each of them is to have."""

    def __init__(self, work: Path, program: Path, scale: float, minutes: float = math.inf,
                 anew: bool = False) -> None:
        self._work, self._program, self._scale = work.resolve(), program.resolve(), scale
        self._until, self._anew = time.monotonic() + 60 * minutes, anew
        self._machine = describe_machine()
        self._seen: dict[str, tuple[int, float]] = {}

    @property
    def has_end(self) -> bool:
        return math.isfinite(self._until)

    def is_over(self) -> bool:
        """Whether the minutes that were given have passed."""
        return time.monotonic() >= self._until

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
        if self.seen(cell)[0] >= wanted or self.is_over():
            return
        self.note_machine(cell)
        process = subprocess.Popen(self.command(cell, wanted), env=environment(cell), cwd=ROOT,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)  # fmt: skip
        out, errors = self.wait(process)
        self._seen.pop(cell.name, None)
        if process.returncode != 0 and not self.is_over():
            words = (errors or out).strip()[-2000:]
            raise RuntimeError(f"{cell.name}: ended with {process.returncode}; {words}")

    def wait(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        """What a campaign prints until it ends. It is asked to end when the time is over."""
        try:
            left = max(0.0, self._until - time.monotonic()) if self.has_end else None
            return process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            pass
        # The first one lets it check the trials that it has, the second one ends its training, too.
        for grace in GRACES:
            process.send_signal(signal.SIGINT)
            try:
                return process.communicate(timeout=grace)
            except subprocess.TimeoutExpired:
                pass
        process.kill()
        return process.communicate()

    def note_machine(self, cell: Cell) -> None:
        """Writes down on which machine a campaign runs. A campaign that another machine began is
        refused, or begun anew if that was asked for."""
        folder = self._work / cell.name
        there = read_machine(folder)
        if folder.exists() and there != self._machine:
            if not self._anew:
                raise RuntimeError(
                    f"{cell.name}: its {self.seen(cell)[0]} trials ran on {machine_words(there)}, "
                    f"and this is {machine_words(self._machine)}; expected the same machine, or "
                    "--anew to begin again")
            shutil.rmtree(folder)
        machine_note(folder).parent.mkdir(parents=True, exist_ok=True)
        machine_note(folder).write_text(json.dumps(self._machine) + "\n")

    def make_start(self, cell: Cell) -> Path:
        """What a training in another framework starts from, made unless it is there."""
        start = self._work / f"{cell.base}.start.npz"
        export_start(sys.executable, self.make_base(cell.base), start, environment())
        return start

    def make_own_base(self, cell: Cell) -> Path:
        """The checkpoint of a cell in the format of its framework."""
        if cell.job.framework == "torch":
            return self.make_base(cell.base)
        framework = FRAMEWORKS[cell.job.framework]
        path = self._work / f"{cell.base}.{framework.name}{framework.ending}"
        convert_base(framework, self.make_start(cell), path, environment(cell))
        return path

    def script(self, cell: Cell) -> list[str]:
        if cell.job.framework != "torch":
            return [*FRAMEWORKS[cell.job.framework].command(self.make_start(cell)), "--serve"]
        return [python_name(), SCRIPT, "--serve", "--optimizer", cell.optimizer,
                *(("--model", cell.model) if cell.model != "digits" else ()), *cell.job.words]

    def command(self, cell: Cell, trials: int) -> list[str]:
        state = ["--state"] if cell.keeps_state else []
        plans = self.make_plans(cell)
        chosen = ["--plan", *plans] if plans else [*self.site_options(cell), "--bits", cell.bits]
        return [str(self._program), "campaign", "run", str(self.make_own_base(cell)), *chosen,
                "--checksums", "consistent", "--trials", str(trials), "-o",
                str(self._work / cell.name), *state, "--serve", "--", *self.script(cell)]  # fmt: skip

    def site_options(self, cell: Cell) -> list[str]:
        return [*cell.selection, "--flips", str(cell.flips), "--seed", str(cell.seed)]

    def make_plans(self, cell: Cell) -> list[str]:
        """The plans of a campaign that takes bits in turn or belongs to another framework, made
        unless they are there. All of them are made at once, because a campaign is continued only
        with the same plans."""
        folder = self._work / "plans" / cell.name
        own = cell.turns or cell.job.framework != "torch"
        paths = [folder / f"{trial}.json" for trial in range(cell.trials if own else 0)]
        for trial, path in enumerate(paths):
            if not path.exists():
                folder.mkdir(parents=True, exist_ok=True)
                self.make_plan(cell, trial, path)
        return list(map(str, paths))

    def make_plan(self, cell: Cell, trial: int, path: Path) -> None:
        bits = str(cell.turns[trial % len(cell.turns)]) if cell.turns else cell.bits
        fresh = path.with_suffix(".tmp")
        subprocess.run([self._program, "inject", self.make_base(cell.base),
                        *self.site_options(cell), "--bits", bits, "--trial", str(trial),
                        "--dry-run", "--save-plan", fresh], check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        if cell.job.framework != "torch":
            FRAMEWORKS[cell.job.framework].translate_plan(fresh, fresh)
        fresh.rename(path)

    def seen(self, cell: Cell) -> tuple[int, float]:
        """How many trials are finished, and how many seconds they took. The file is read once,
        and again after run()."""
        found = self._seen.get(cell.name)
        if found is None:
            found = read_seconds(self._work / cell.name / "trials.jsonl")
            self._seen[cell.name] = found
        return found

    def left(self, cells: Iterable[Cell], jobs: int) -> str:
        """How many trials are left, and how long they will take."""
        cells = list(cells)
        by_job: dict[Job, list[tuple[int, float]]] = {}
        for cell in cells:
            by_job.setdefault(cell.job, []).append(self.seen(cell))
        each = {job: sum(took for _, took in seen) / max(1, sum(done for done, _ in seen))
                for job, seen in by_job.items()}  # fmt: skip
        trials, seconds = 0, 0.0
        for cell in cells:
            missing = max(0, self.trials(cell) - self.seen(cell)[0])
            trials += missing
            seconds += missing * each[cell.job] / side_by_side(cell, jobs)
        return f"{trials:,} trials left, about {max(1, round(seconds / 60))} min"


def read_seconds(path: Path) -> tuple[int, float]:
    """How many trials a file has, and how many seconds they took. The last line may be torn."""
    try:
        lines = path.read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return 0, 0.0
    took = [json.loads(line)["seconds"] for line in lines if line.endswith("\n")]
    return len(took), sum(took)


def environment(cell: Cell | None = None) -> dict[str, str]:
    """The variables of a training. Packages beside Horovod's would not fit other frameworks."""
    alien = cell is not None and cell.job.framework != "torch"
    paths = ["" if alien else str(HOROVOD), os.environ.get("PYTHONPATH", "")]
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


def run_all(cells: list[Cell], run: Callable[[Cell], None], tell: Callable[[Cell], str],
            jobs: int) -> list[Cell]:
    """Runs all cells, first those with most ranks, and says what tell() returns for each. Returns
    the cells that failed."""
    failed: list[Cell] = []
    lock, stop = threading.Lock(), threading.Event()

    def one(cell: Cell) -> None:
        if stop.is_set():
            return
        try:
            run(cell)
        except (RuntimeError, subprocess.CalledProcessError, OSError) as error:
            text = str(error)
            failed.append(cell)
        else:
            text = tell(cell)
        with lock:
            if text:
                say(text)

    for ranks in sorted({cell.job.ranks for cell in cells}, reverse=True):
        some = [cell for cell in cells if cell.job.ranks == ranks]
        with ThreadPoolExecutor(side_by_side(some[0], jobs)) as pool:
            try:
                list(pool.map(one, some))
            except KeyboardInterrupt:
                stop.set()  # otherwise the pool would begin all other cells before it ends
                raise
    return failed


def side_by_side(cell: Cell, jobs: int) -> int:
    """How many such cells run at the same time, so that there are no more processes than jobs."""
    return max(1, jobs // cell.job.ranks)


def describe_machine() -> Machine:
    return {"CPU": " ".join(filter(None, (platform.machine(), processor()))),
            "cores": str(os.cpu_count()), "torch": metadata.version("torch")}  # fmt: skip


def parse() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--work", type=Path, default=ROOT / ".cache/campaign",
                      help="the folder of the campaigns")
    made.add_argument("--program", type=Path, default=ROOT / ".venv/bin/holdfast")
    made.add_argument("--scale", type=float, default=1.0,
                      help="the share of the planned trials to run, above 0 and up to 1")
    made.add_argument("--only", nargs="*", default=["*"], help="patterns of cells to run")
    made.add_argument("--jobs", type=int, default=os.cpu_count(),
                      help="how many processes train side by side")
    made.add_argument("--minutes", type=float, default=math.inf,
                      help="stop after so many minutes; the next call continues")
    made.add_argument("--anew", action="store_true",
                      help="begin campaigns again that another machine left unfinished")
    made.add_argument("--prepare", action="store_true",
                      help="make the checkpoints and plans, and run nothing")
    pages = made.add_mutually_exclusive_group()
    pages.add_argument("--no-page", action="store_true", help="leave results and page alone")
    pages.add_argument("--only-page", action="store_true",
                       help="add the campaigns in --work to results and page, and run nothing")
    args = made.parse_args()
    if not 0 < args.scale <= 1:
        made.error(f"--scale: {args.scale}; expected a number above 0 and up to 1")
    if not args.minutes > 0:
        made.error(f"--minutes: {args.minutes}; expected a number above 0")
    if args.jobs < 1:
        made.error(f"--jobs: {args.jobs}; expected at least 1")
    if not args.only_page and not os.access(args.program, os.X_OK):
        made.error(f"--program: {args.program} cannot be run; expected the holdfast command, "
                   "which `make build` makes")  # fmt: skip
    return args


def choose(patterns: list[str]) -> list[Cell]:
    cells = [cell for cell in all_campaigns() if any(fnmatch(cell.name, each) for each in patterns)]
    if any(cell.job.launcher == "horovod" for cell in cells) and not (HOROVOD / "built").exists():
        say("Horovod is not in .cache/horovod, where scripts/rivals.sh puts it; its cells are left "
            "out")
        cells = [cell for cell in cells if cell.job.launcher != "horovod"]
    for framework in FRAMEWORKS.values():
        chosen = [cell for cell in cells if cell.job.framework == framework.name]
        if chosen and not framework.is_installed():
            say(f"{framework.python} is not there, where scripts/foreign_environment.sh "
                f"{framework.environment} puts it; the cells of {framework.name} are left out")
            cells = [cell for cell in cells if cell not in chosen]
    return cells


def main() -> int:
    args = parse()
    if args.only_page:
        remake_page(args.work)
        return 0
    cells = choose(args.only)
    if not cells:
        say(f"--only {' '.join(args.only)}: no cell has such a name")
        return 2
    study = Study(args.work, args.program, args.scale, args.minutes, args.anew)
    for base in dict.fromkeys(cell.base for cell in cells):
        study.make_base(base)
    if args.prepare:
        make_all_plans(cells, study, args.jobs)
        return 0
    failed = run_cells(cells, study, args.jobs)
    if not args.no_page:
        remake_page(args.work)
    return 1 if failed else 0


def make_all_plans(cells: list[Cell], study: Study, jobs: int) -> None:
    with ThreadPoolExecutor(jobs) as pool:
        made = sum(len(plans) for plans in pool.map(study.make_plans, cells))
    say(f"{made:,} plans are there")


def run_cells(cells: list[Cell], study: Study, jobs: int) -> list[Cell]:
    """Runs the cells. If nobody has said how long that may take, a few trials of each kind come
    first and tell how long it will. Returns the cells that failed."""
    cells = sorted(cells, key=lambda cell: study.seen(cell)[0] - study.trials(cell))
    failed: list[Cell] = []
    if not study.has_end and sum(map(study.trials, cells)) > WORTH:
        failed = run_all(kinds(cells), lambda cell: study.run(cell, PROBES), lambda cell: "", 1)
    wrong = {cell.job for cell in failed}
    rest = [cell for cell in cells if cell.job not in wrong]
    if len(rest) < len(cells):
        say(f"{len(cells) - len(rest)} cells are left out, because one of their kind failed")
    say(f"{len(rest)} cells, {study.left(rest, jobs)}")
    failed += run_all(rest, study.run, lambda cell: (
        f"{cell.name}: {study.seen(cell)[0]} of {cell.trials}; {study.left(rest, jobs)}"), jobs)
    if study.is_over():
        say("the minutes have passed; the same call continues")
    return failed


def remake_page(work: Path) -> None:
    """Adds the campaigns in a folder to the results, and makes the pages from them."""
    # Imported here, because campaigns also run where only a part of Holdfast is.
    from holdfast import Error
    from page import PAGE, make_page

    try:
        results = merge(read(), collect(work))
    except (ValueError, Error) as error:
        say(f"results and page stay as they are: {error}")
        return
    write(results)
    PAGE.write_text(make_page(results))
    say("python study/claims.py writes the verdicts into docs/studies/papers.md")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped; the same call continues")
        sys.exit(130)
