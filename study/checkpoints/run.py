"""Repeats the study of checkpoint-restart on this machine: how engines save, and what is left after a crash.

    python study/checkpoints/run.py [--only 'crash-*'] [--engine dcp] [--quick]

Each cell is measured once, and kept at once: what was interrupted goes on where it was. Cells of two machines
are never mixed. A framework that is not installed leaves its cells as "not run".
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(Path(__file__).resolve().parent)]
from cells import Cell, choose  # noqa: E402: it is in a folder of its own
from measuring.machines import this_machine  # noqa: E402: as above
from results import Result, Results, tell  # noqa: E402: as above

HERE = Path(__file__).resolve().parent
MEMORY = Path("/dev/shm")
QUICK, THOROUGH = 5, 1000  # at how many of its calls each of several ranks is killed


def measured(framework: str, cells: Sequence[Cell], work: Path, most_deaths: int) -> Iterator[tuple[Cell, Result]]:
    """Measures cells of one framework, in the order in which they are given."""
    python = find_python(framework)
    if isinstance(python, str):
        yield from ((cell, {"not_run": python}) for cell in cells)
        return
    with subprocess.Popen([python, HERE / "worker.py", framework, work], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:  # fmt: skip
        assert worker.stdin is not None and worker.stdout is not None and worker.stderr is not None
        try:
            for cell in cells:
                try:
                    print(json.dumps({"engine": cell.engine, "most_deaths": most_deaths}), file=worker.stdin, flush=True)
                except BrokenPipeError:
                    pass  # the answer is missing, too
                line = worker.stdout.readline()
                if not line:
                    words = worker.stderr.read().strip().splitlines()
                    yield cell, {"not_run": f"{framework} cannot be used: {words[-1] if words else 'no word'}"}
                    continue
                yield cell, json.loads(line)
        finally:
            worker.kill()


def find_python(framework: str) -> Path | str:
    """The Python that has a framework, or why there is none."""
    if framework == "torch":
        return Path(sys.executable)
    done = subprocess.run([ROOT / "scripts/foreign_environment.sh", framework], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)  # fmt: skip
    if done.returncode:
        words = done.stderr.strip().splitlines()
        return f"{framework} was not installed: {words[-1] if words else 'no word'}"
    return Path(done.stdout.strip().splitlines()[-1])


def run(cells: Sequence[Cell], results: Results, work: Path, most_deaths: int) -> bool:
    """Measures what is missing. True if nothing failed."""
    missing = [cell for cell in cells if not results.is_done(cell.name)]
    done, good = len(cells) - len(missing), True
    for framework in dict.fromkeys(cell.framework for cell in missing):
        some = [cell for cell in missing if cell.framework == framework]
        for cell, result in measured(framework, some, work, most_deaths):
            results.keep(cell.name, result)
            done, good = done + 1, good and "failed" not in result
            print(f"{tell(cell.name, result)}    {done} of {len(cells)} cells", flush=True)
    return good


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="patterns of cells, such as 'crash-*'")
    parser.add_argument("--engine", nargs="+", default=[], metavar="NAME", help="cells of these engines alone")
    parser.add_argument("--quick", action="store_true", help="kill ranks at a few of their calls, and not at each")
    parser.add_argument("--anew", action="store_true", help="forget what was measured before")
    parser.add_argument("--results", type=Path, default=ROOT / ".cache/study/checkpoints.json",
                        help="the file that keeps what was measured")
    args = parser.parse_args()
    try:
        args.cells = choose(args.only, args.engine)
    except ValueError as error:
        parser.error(str(error))
    return args


def main() -> int:
    args = parse()
    if args.anew:
        args.results.unlink(missing_ok=True)
    try:
        results = Results(args.results, this_machine())
    except (ValueError, KeyError) as error:
        print(f"study: {error}", file=sys.stderr)
        return 1
    # In memory, because thousands of small folders are written, and nothing here is about the disk's speed.
    work = Path(tempfile.mkdtemp(prefix="holdfast-study-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        good = run(args.cells, results, work, QUICK if args.quick else THOROUGH)
    except KeyboardInterrupt:
        print("study: stopped; the same call goes on from here", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
