"""The program behind `holdfast bench`: how fast checkpoints are saved into a folder and loaded from it."""

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import holdfast
from holdfast.statistics import quantile_interval

if TYPE_CHECKING:
    import torch

_EXAMPLES = """examples:
  holdfast bench /scratch
  holdfast bench /scratch --size 4000 --mtbf 2h --json

exit codes: 0 measured, 1 it failed, 2 wrong call
"""
WRONG_CALL = 2
_TENSORS, _LEAST, _QUICK = 16, 2, 11  # tensors of the state; rounds at least, and at most if it is quick
State = dict[str, "torch.Tensor"]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Says what is wrong, in one sentence."""
        print(f"holdfast: bench: {message}", file=sys.stderr)
        sys.exit(WRONG_CALL)


class _Engine:
    """A way to save. It saves over its file or folder of before; the files of others are synced here."""

    def __init__(self, save: Callable[[State, Path], Any], load: Callable[[State, Path], Any]) -> None:
        self.save, self.load = save, load

    def round(self, state: State, place: Path) -> dict[str, float]:
        """Seconds that training waits, until a crash cannot lose the save, and of a cold load."""
        start = time.perf_counter()
        self.save(state, place)
        stall = time.perf_counter() - start
        _for_each_file(place, os.fsync)
        durable = time.perf_counter() - start
        return {"stall": stall, "durable": durable, "load": _seconds_of_load(self, state, place)}


class _Holdfast(_Engine):
    def __init__(self) -> None:
        super().__init__(lambda state, place: None, lambda state, place: holdfast.restore(place / "run", state))
        self.saver: holdfast.Saver | None = None
        self.step = 0

    def round(self, state: State, place: Path) -> dict[str, float]:
        self.saver = self.saver or holdfast.Saver(place / "run", keep=1)
        self.step += 1
        start = time.perf_counter()
        handle = self.saver.save(self.step, state)
        handle.captured()
        stall = time.perf_counter() - start
        handle.durable()
        durable = time.perf_counter() - start
        return {"stall": stall, "durable": durable, "load": _seconds_of_load(self, state, place)}


def _engines() -> dict[str, _Engine]:
    import torch
    import torch.distributed.checkpoint as dcp

    def load_torch(state: State, place: Path) -> None:
        torch.load(place / "last.pt", weights_only=True)

    engines = {"Holdfast": _Holdfast(),
               "torch.save": _Engine(lambda state, place: torch.save(state, place / "last.pt"), load_torch),
               "DCP": _Engine(lambda state, place: dcp.save(state, checkpoint_id=place / "last", no_dist=True),
                              lambda state, place: dcp.load(state, checkpoint_id=place / "last", no_dist=True))}
    try:
        from safetensors.torch import load_file, save_file
    except ImportError:
        return engines
    name = "last.safetensors"
    return engines | {"safetensors": _Engine(lambda state, place: save_file(state, place / name),
                                             lambda state, place: load_file(place / name))}


def _for_each_file(place: Path, act: Callable[[int], None]) -> None:
    """Acts on the descriptors of all files. Holdfast may remove an old step meanwhile."""
    for folder, _, names in os.walk(place):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                number = os.open(os.path.join(folder, name), os.O_RDONLY)
                act(number)
                os.close(number)


def _seconds_of_load(engine: _Engine, state: State, place: Path) -> float:
    """Of a cold load: the files are dropped from the page cache."""
    _for_each_file(place, lambda number: os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED))
    start = time.perf_counter()
    engine.load(state, place)
    return time.perf_counter() - start


def measure(folder: Path, size: int, seconds: float, most: float, say: Callable[[str], None]) -> dict[str, dict[str, list[float]]]:
    """The seconds of each engine in each round. There are rounds until the time is over, or there are the most."""
    import torch

    warnings.filterwarnings("ignore", module="torch.distributed")  # DCP without ranks, over the name before: as we want it
    state = {f"layers.{i}": torch.randn(size // _TENSORS // 4) for i in range(_TENSORS)}
    engines = _engines()
    found: dict[str, dict[str, list[float]]] = {name: {"stall": [], "durable": [], "load": []} for name in engines}
    begin, rounds, dice = time.monotonic(), 0, random.Random(0)
    while rounds < _LEAST or (rounds < most and (time.monotonic() - begin) * (1 + 1 / rounds) < seconds):
        for name in dice.sample(sorted(engines), len(engines)):
            place = folder / name
            place.mkdir(exist_ok=True)
            for kind, value in engines[name].round(state, place).items():
                found[name][kind].append(value)
        rounds += 1
        say(f"{rounds} rounds, {time.monotonic() - begin:.0f} of {seconds:.0f} s")
    return found


def summarize(found: dict[str, dict[str, list[float]]], mtbf: str) -> dict[str, Any]:
    """The median of each figure, the ends of its interval and what that covers; and how often to save."""
    engines: dict[str, Any] = {}
    for name, kinds in found.items():
        engines[name] = {kind: quantile_interval(values, 0.5, 0.95) for kind, values in kinds.items()}
        stall, durable = engines[name]["stall"][0], engines[name]["durable"][0]
        engines[name]["every"] = holdfast.interval(mtbf=mtbf, stall=stall, persist=durable)["interval"]
    return engines


def to_text(report: dict[str, Any]) -> str:
    size = report["bytes"]
    lines = [f"{report['folder']}: {size / 1e6:.0f} MB, {report['rounds']} rounds",
             f"{'':12} {'training waits':>28} {'safe on disk':>13} {'cold load':>10}   save every"]
    for name, one in report["engines"].items():
        stall, low, high, covers = one["stall"]
        lines.append(f"{name:12} {1e3 * stall:8.1f} ms ({1e3 * low:.1f} to {1e3 * high:.1f})".ljust(41)
                     + f" {size / one['durable'][0] / 1e9:8.2f} GB/s {size / one['load'][0] / 1e9:5.2f} GB/s"
                     f"   {one['every']:.0f} s")
    lines.append(f"The ranges cover the median with {100 * covers:.0f} %. \"Save every\" loses the least time if something "
                 f"fails once in {report['mtbf']} (holdfast interval).")
    return "\n".join(lines)


def parse(words: list[str]) -> argparse.Namespace:
    parser = _Parser(prog="holdfast bench", usage="holdfast bench FOLDER [options]", epilog=_EXAMPLES,
                     allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
                     description="Saves the same tensors into a folder with torch.save, safetensors, DCP and Holdfast, "
                                 "in turns for a minute, loads them again, and says how often to save.")
    parser.add_argument("folder", type=Path, help="a folder on the disk to measure; nothing stays in it")
    parser.add_argument("--size", type=int, default=0, metavar="MB", help="the size of the state (default: 512; 32 if quick)")
    parser.add_argument("--mtbf", default="8h", metavar="TIME", help="the time between two failures (default: 8h)")
    parser.add_argument("--quick", action="store_true", help="take a few seconds only, with a small state")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, in seconds")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    args = parser.parse_args(words)
    args.bytes = (args.size or (32 if args.quick else 512)) * 10**6
    if not os.path.isdir(args.folder):  # False also for a name that is too long
        parser.error(f"{args.folder}: not a folder; expected one on the disk to measure")
    if args.bytes <= 0:
        parser.error(f"--size {args.size}; expected 1 or more")
    try:
        holdfast.interval(mtbf=args.mtbf, stall=1)
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    if (free := shutil.disk_usage(args.folder).free) < 6 * args.bytes:
        parser.error(f"{args.folder}: {free / 1e6:.0f} MB are free; expected {6 * args.bytes / 1e6:.0f} MB, or a smaller --size")
    return args


def main(words: list[str]) -> int:
    args = parse(words)
    say = (lambda text: None) if args.quiet or not sys.stderr.isatty() else (
        lambda text: print(f"\r{text} ", end="", file=sys.stderr, flush=True))
    try:
        with tempfile.TemporaryDirectory(dir=args.folder, prefix="holdfast-bench-") as work:
            found = measure(Path(work), args.bytes, *((3.0, _QUICK) if args.quick else (60.0, math.inf)), say)
    except (OSError, ImportError) as error:
        print(f"holdfast: bench: {error}", file=sys.stderr)
        return 1
    report = {"folder": str(args.folder), "bytes": args.bytes, "mtbf": args.mtbf,
              "rounds": len(found["Holdfast"]["load"]), "engines": summarize(found, args.mtbf)}
    print(json.dumps(report) if args.json else to_text(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
