"""Repeats the study of checkpoint-restart on this machine: how engines save, and what is left after a crash.

    python study/checkpoints/run.py [--only 'crash-*'] [--engine dcp] [--quick]

Each cell is measured once, and kept at once: what was interrupted goes on where it was. Cells of two machines
are never mixed. A framework that is not installed leaves its cells as "not run". The cells formats-*, cost-*,
restart-* and scale-* measure times: the machine should do nothing else meanwhile.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(Path(__file__).resolve().parent)]
from cells import Cell, choose  # noqa: E402: it is in a folder of its own
from measuring.disk import BLOCK, Raw, file_system  # noqa: E402: as above
from measuring.machines import busy_cores, this_machine  # noqa: E402: as above
from report import make_report  # noqa: E402: as above
from results import Result, Results, tell  # noqa: E402: as above
from verdicts import advice  # noqa: E402: as above

HERE = Path(__file__).resolve().parent
MEMORY = Path("/dev/shm")
DEVICE_BYTES = 256 << 20
DISK = ROOT / ".cache/study"


class Places(NamedTuple):
    """Where files are written: in memory because thousands of small folders are; on a disk whose speed matters."""

    memory: Path
    disk: Path


def measured(framework: str, cells: Sequence[Cell], places: Places, quick: bool) -> Iterator[tuple[Cell, Result]]:
    """Measures cells of one framework, in the order in which they are given."""
    python = find_python(framework)
    if isinstance(python, str):
        yield from ((cell, {"not_run": python}) for cell in cells)
        return
    with subprocess.Popen([python, HERE / "worker.py", framework], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:  # fmt: skip
        assert worker.stdin is not None and worker.stdout is not None and worker.stderr is not None
        try:
            for cell in cells:
                load = {"load": round(busy_cores(), 2)} if cell.is_timed else {}
                work = (places.disk if cell.is_timed else places.memory) / cell.name
                try:
                    print(json.dumps({"experiment": cell.experiment, "engine": cell.engine, "work": str(work),
                                      "options": cell.options(quick)}), file=worker.stdin, flush=True)  # fmt: skip
                except BrokenPipeError:
                    pass  # the answer is missing, too
                line = worker.stdout.readline()
                if not line:
                    words = worker.stderr.read().strip().splitlines()
                    yield cell, {"not_run": f"{framework} cannot be used: {words[-1] if words else 'no word'}"}
                    continue
                yield cell, json.loads(line) | load | ({"quick": True} if quick else {})
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


def run(cells: Sequence[Cell], results: Results, places: Places, quick: bool) -> bool:
    """Measures what is missing. True if nothing failed."""
    missing = [cell for cell in cells if not results.is_done(cell.name, quick)]
    done, good = len(cells) - len(missing), True
    if any(cell.is_timed for cell in missing):
        results.keep_device(measure_device(places.disk))
    for framework in dict.fromkeys(cell.framework for cell in missing):
        some = [cell for cell in missing if cell.framework == framework]
        for cell, result in measured(framework, some, places, quick):
            results.keep(cell.name, result)
            done, good = done + 1, good and "failed" not in result
            print(f"{tell(cell.name, result)}    {done} of {len(cells)} cells", flush=True)
    return good


def measure_device(folder: Path) -> dict[str, float | str]:
    """The GB/s of the disk alone, beside which times of saves and loads are read."""
    raw = Raw(folder, DEVICE_BYTES, [(BLOCK, 4)])
    rates = {name: DEVICE_BYTES / median(way() for _ in range(3)) / 1e9 for name, way in
             (("write", raw.write), ("read", raw.read))}  # fmt: skip
    raw.path.unlink()
    return rates | {"files": file_system(folder)}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="patterns of cells, such as 'crash-*'")
    parser.add_argument("--engine", nargs="+", default=[], metavar="NAME", help="cells of these engines alone")
    parser.add_argument("--quick", action="store_true", help="fewer states, rounds and kills of ranks")
    parser.add_argument("--anew", action="store_true", help="forget what was measured before")
    parser.add_argument("--results", type=Path, default=ROOT / ".cache/study/checkpoints.json",
                        help="the file that keeps what was measured")
    parser.add_argument("--folder", type=Path, default=DISK, help="the disk whose speed is measured")
    args = parser.parse_args()
    try:
        args.cells = choose(args.only, args.engine, args.quick)
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
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-study-", dir=MEMORY if MEMORY.is_dir() else None) as memory, \
            tempfile.TemporaryDirectory(prefix="work-", dir=args.folder) as disk:  # fmt: skip
        try:
            good = run(args.cells, results, Places(Path(memory), Path(disk)), args.quick)
        except KeyboardInterrupt:
            print("study: stopped; the same call goes on from here", file=sys.stderr)
            return 130
    report = args.results.with_suffix(".html")
    report.write_text(make_report(results.found))
    print("\n".join(advice(results.cells, "users")), f"\n{report}", sep="\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
