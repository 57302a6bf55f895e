"""Measures what a save costs a training loop on a GPU, with Holdfast and with other libraries.

    gpu_bench.py [--folder PATH] [--json PATH] [--rounds N] [--layers N] [--parts PART ...]

A GPT of about 336 million parameters with fused AdamW under bf16 autocast, 4 GB of state, is
trained in blocks of 30 steps of about 100 ms:

  bare       only the steps
  idle       Checkpointer.step() is called after each step, with nothing to save
  save       the same, with one save after the third step, which is durable within the block
  plain      a simple loop of copies and writes saves, without digests or commit, for comparison

Every round has one block of each kind, in a new order (bench/measuring/paired.py). The added time of a kind
is its wall time minus that of the bare block in the same round: the median over the rounds, with a
95 % interval.

  durable    the time until everything is on the disk, from the moment at which the GPU has made the
             step that is saved, divided by the time of a raw write of a new file with O_DIRECT in
             the same round
  load       the time of a cold load into the GPU, divided by the time of a raw read with O_DIRECT;
             the two are measured in turns
  stall      300 fp32 tensors without a training loop: the time from the call until an update may
             begin, including the work of the GPU

Bars: a save adds at most 4 ms if the GPU has room for a copy, and 15 ms if not; a first save adds
at most 5 and 19 ms. With room, the 99th percentile of the stall is at most 1 ms for 0.2 GB and 5 ms
for 4.3 GB; without room, the stall is at most 1.1 times a plain copy into pinned memory. durable is
at most 1.1, load at most 1 / 0.9. A bar is missed only if the whole interval lies above it.
The rivals are those of bench/measuring/rivals.py that are installed, each in processes of its own, so that
the first save of each process is one of a new job. A part takes 2 to 6 minutes; *rivals* and *firsts*, which
takes first saves in further processes, take longer and continue where they stopped:

    gpu_bench.py --parts copy --rounds 11 --json F          begins the file
    gpu_bench.py --parts rivals --rounds 11 --minutes 6 --json F     as often as it takes, on the same machine
    gpu_bench.py --parts firsts --minutes 8 --json F        likewise
"""

import argparse
import json
import math
import operator
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_engines import CopyAndWrite, Engine, Holdfast, Other
from gpu_training import Job
from torch import nn

import holdfast

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring import results  # noqa: E402: it is in the folder above
from measuring.disk import BLOCK, Raw, forget  # noqa: E402
from measuring.machines import identity, this_run  # noqa: E402
from measuring.options import parser  # noqa: E402
from measuring.paired import Interval, difference, in_turns, interval, quantile  # noqa: E402
from measuring.rivals import IN_A_LOOP, Rival, versions  # noqa: E402

PARTS = ["copy", "ring", "bare", "load", "rivals", "firsts"]
PATHS = COPY, RING = "copy inside the GPU", "pinned ring"
STEPS = 30  # the steps of a block
FIRSTS = 5  # the number of processes whose first save is measured
SHARE = 6  # the rounds that one process of a rival measures
LONGEST = 300  # seconds of such a process
ERROR = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b")  # the begin of the last line of a traceback
LONGEST_REASON = 160  # characters
ADDED = {COPY: 4.0, RING: 15.0}  # milliseconds
WAYS = [(block, threads) for block in (BLOCK // 4, BLOCK) for threads in (8, 16)]  # of raw transfers


class Block:
    """So many steps, with the calls of the engine if one is given.

    took_ms   their wall time
    ahead_s   how long before the GPU the host came to the save: it launches steps that the GPU makes
              later, and until then there is nothing to save
    """

    def __init__(self, job: Job, engine: Engine | None, save: bool, steps: int = STEPS) -> None:
        begun, reached = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start = time.perf_counter()
        begun.record()
        for step in range(steps):
            job.step()
            if engine is not None and save and step == 2:
                reached.record()
                called = time.perf_counter()
                engine.save()
            elif engine is not None:
                engine.step()
        torch.cuda.synchronize()
        self.took_ms = (time.perf_counter() - start) * 1e3
        if save:
            self.ahead_s = begun.elapsed_time(reached) / 1e3 - (called - start)


class Loop:
    """Blocks of one job, with an engine and without, in turns."""

    def __init__(self, job: Job, engine: Engine, disk: Raw | None = None) -> None:
        self.job, self.engine, self.disk = job, engine, disk
        self.durables: list[float] = []
        self.aheads: list[float] = []
        self.of_raw: list[float] = []

    def bare(self) -> float:
        return Block(self.job, None, save=False).took_ms

    def idle(self) -> float:
        return Block(self.job, self.engine, save=False).took_ms

    def save(self, steps: int = STEPS) -> float:
        block = Block(self.job, self.engine, save=True, steps=steps)
        start = time.perf_counter()
        self.engine.wait()
        waited = time.perf_counter() - start
        durable = self.engine.durable_s() or block.took_ms / 1e3 + waited
        self.engine.drop_older()
        time.sleep(0.3)
        self.aheads.append(block.ahead_s)
        self.durables.append(durable - block.ahead_s)
        if self.disk is not None:
            self.of_raw.append(self.durables[-1] / self.disk.write())
        return block.took_ms

    def forget_saves(self) -> None:
        """Leaves out the saves so far: the first one is measured by itself."""
        self.durables, self.aheads, self.of_raw = [], [], []

    def continue_with(self, saves: dict[str, list[float]]) -> None:
        """Adds the saves of earlier calls."""
        self.durables = [*saves.get("durable_s", []), *self.durables]
        self.aheads = [*saves.get("ahead_s", []), *self.aheads]

    def figures(self, seen: dict[str, list[float]]) -> dict:
        added = {f"{name}_added_ms": difference(values, seen["bare"])
                 for name, values in seen.items() if name != "bare"}
        return added | {"block_ms": statistics.median(seen["bare"]), "rounds_ms": seen,
                        "saves": {"durable_s": self.durables, "ahead_s": self.aheads},
                        "ahead_s": statistics.median(self.aheads),
                        "durable_s": statistics.median(self.durables)}


def measure_holdfast(job: Job, folder: Path, disk: Raw, rounds: int, room: bool) -> dict:
    """Measures what saves add to the loop. With `room`, also measures CopyAndWrite in turns."""
    make = Holdfast if room else without_room
    engine = make(job, folder / "engine")
    loop = Loop(job, engine, disk)
    first = loop.save()
    loop.forget_saves()
    ways = {"bare": loop.bare, "idle": loop.idle, "save": loop.save}
    if room:
        plain = CopyAndWrite(job, folder)
        simple = Loop(job, plain, disk)
        ways["plain"] = simple.save
    seen = in_turns(ways, rounds)
    figures = loop.figures(seen) | {"durable_of_raw": interval(loop.of_raw)}
    if room:
        figures["plain_durable_of_raw"] = interval(simple.of_raw)
    figures["times_s"] = engine.times()
    engine.close()
    del engine, loop, ways
    if room:
        del plain, simple
    clean(folder / "engine")
    return figures | first_saves([first - statistics.median(seen["bare"])])


def first_saves(added: list[float]) -> dict:
    """The figures of first saves, each in a process of its own, in milliseconds that they add to a block."""
    return {"firsts_ms": added, "first_added_ms": interval(added)}


def measure_rival(job: Job, folder: Path, rival: Rival, rounds: int, known: dict) -> dict:
    """Measures so many rounds. `known` are figures of earlier processes on the same machine, whose rounds
    count; the first save of this process is measured, too."""
    place = folder / "engine"
    place.mkdir()
    engine = Other(job, place, rival)
    loop = Loop(job, engine)
    first = loop.save()
    loop.forget_saves()
    seen = in_turns({"bare": loop.bare, "save": loop.save}, rounds, rounds_of(known))
    engine.close()
    firsts = [*known.get("firsts_ms", []), first - statistics.median(seen["bare"])]
    seen = {name: [*known.get("rounds_ms", {}).get(name, []), *values] for name, values in seen.items()}
    loop.continue_with(known.get("saves", {}))
    return loop.figures(seen) | first_saves(firsts)


def rounds_of(figures: dict) -> int:
    return len(figures.get("rounds_ms", {}).get("save", []))


def measure_rivals(options: argparse.Namespace, figures: dict, note: Callable[[str, Any], None]) -> None:
    """Measures the rivals that have too few rounds, the one with the fewest first, until the time is over."""
    begun = time.monotonic()
    names = [kind.name for kind in IN_A_LOOP if not options.rivals or kind.name in options.rivals]
    while short := [name for name in names if rounds_of(figures.get(name, {})) < options.rounds]:
        if time.monotonic() - begun > 60 * options.minutes:
            return
        name = min(short, key=lambda name: rounds_of(figures.get(name, {})))
        known = figures.get(name, {})
        rounds = min(SHARE, options.rounds - rounds_of(known))
        seen = in_new_process(options, "--rival", name, "--rounds", str(rounds), known=known)
        if isinstance(seen, str):
            names.remove(name)
            if not known:
                note(name, {"failed": seen})
        else:
            note(name, seen | {"identity": identity()})


def measure_firsts(options: argparse.Namespace, figures: dict, note: Callable[[str, Any], None]) -> None:
    """Adds the first saves of new processes to every way that was measured, in turns."""
    begun = time.monotonic()
    names = [name for name, one in figures.items() if isinstance(one, dict) and "saves" in one]
    for number in range(FIRSTS):
        for name in names:
            seen = figures[name].get("firsts_ms", [])
            if len(seen) > number or time.monotonic() - begun > 60 * options.minutes:
                continue
            added = in_new_process(options, "--first", name)
            if not isinstance(added, str):
                note(name, figures[name] | first_saves([*seen, added]))


def in_new_process(options: argparse.Namespace, *words: str, known: Any = None) -> Any:
    """What this script measures in another process, or in words why it failed. The process says a lot, and its
    figures in the last line."""
    name = words[1]
    try:
        done = subprocess.run([sys.executable, __file__, *words, "--layers", str(options.layers), "--folder",
                               str(options.folder)], input=json.dumps(known), capture_output=True, text=True,
                              timeout=LONGEST)
    except subprocess.TimeoutExpired:
        print(f"  {name}: failed, it took more than {LONGEST} s", flush=True)
        return f"it took more than {LONGEST} s"
    if done.returncode:
        print(f"  {name}: failed: {done.stderr[-600:]}", flush=True)
        return reason_of(done.stderr, done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def reason_of(errors: str, code: int) -> str:
    """The line of a traceback that names the error, or another last word of a process that failed."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    named = [line for line in lines if ERROR.match(line)]
    last = (named or lines or [f"it ended with {code}"])[-1]
    return last if len(last) <= LONGEST_REASON else last[:LONGEST_REASON] + "..."


def rival_in_this_process(options: argparse.Namespace) -> dict:
    """The figures of one rival."""
    (kind,) = (kind for kind in IN_A_LOOP if kind.name == options.rival)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="rival-") as name:
        rival, job = kind(), Job(options.layers)
        return measure_rival(job, Path(name), rival, options.rounds, json.load(sys.stdin) or {})


def first_in_this_process(options: argparse.Namespace) -> float:
    """What the first save of this process adds to a block, in milliseconds."""
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="first-") as name:
        folder, job = Path(name), Job(options.layers)
        place = folder / "engine"
        kinds = {kind.name: kind for kind in IN_A_LOOP}
        if options.first in kinds:
            place.mkdir()
            engine: Engine = Other(job, place, kinds[options.first]())
        else:
            engine = (Holdfast if COPY in options.first else without_room)(job, place)
        loop = Loop(job, engine)
        before, save, after = loop.bare(), loop.save(), loop.bare()
        engine.close()
        return save - (before + after) / 2


def clean(place: Path) -> None:
    shutil.rmtree(place)
    torch.cuda.empty_cache()


def without_room(job: Job, folder: Path) -> Holdfast:
    """Holdfast on a GPU that has too little free memory for a copy of the state."""
    job.step()  # allocates the memory that a step needs
    torch.cuda.synchronize()
    filler = fill_memory(2 << 30)
    engine = Holdfast(job, folder, ring=job.bytes + (64 << 20))
    engine.filler = filler
    return engine


def fill_memory(but: int) -> torch.Tensor:
    """Allocates all free memory of the GPU except so many bytes."""
    free, _ = torch.cuda.mem_get_info()
    return torch.empty(max(0, free - but), dtype=torch.uint8, device="cuda")


class Bare:
    """300 tensors without a training loop. `room`: the GPU has memory for a copy of them."""

    def __init__(self, size: int, folder: Path, room: bool) -> None:
        self.elements = size // 300 // 4
        self.model = nn.ParameterList(
            nn.Parameter(torch.randn(self.elements, device="cuda")) for _ in range(300))
        self.bytes = 300 * self.elements * 4
        self.memory = torch.empty(300 * self.elements, pin_memory=not room,
                                  device="cuda" if room else "cpu")
        self.filler = None if room else fill_memory(1 << 30)
        self.ck = holdfast.Checkpointer(folder / "bare", model=self.model, keep=1,
                                        every="1000000 steps",
                                        writing=holdfast.Writing(
                                            ring=0 if room else self.bytes + (64 << 20)))
        self.ck.resume()
        begun = time.monotonic()
        while time.monotonic() < begun + 4:  # in a job, too, the first save comes later
            self.update()

    def update(self) -> None:
        """The smallest possible update of all tensors."""
        with torch.no_grad():
            torch._foreach_add_(list(self.model.parameters()), 1e-6)
        torch.cuda.synchronize()

    def stall(self, number: int) -> float:
        """Milliseconds from the call until an update may begin."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        handle = self.ck.save(number)
        self.ck._saves.settle()
        torch.cuda.current_stream().synchronize()  # waits for the copies, not for the writing
        took = (time.perf_counter() - start) * 1e3
        while not handle.is_done:  # updates meanwhile, as training does
            self.update()
        handle.durable()
        return took

    def copy(self) -> float:
        """Milliseconds in which torch copies all tensors, inside the GPU or into pinned memory."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        for to, parameter in zip(self.memory.split(self.elements), self.model, strict=True):
            to.copy_(parameter.detach(), non_blocking=True)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3


def bare(size: int, folder: Path, rounds: int, room: bool) -> dict:
    """Measures the stall of saves, in turns with plain copies."""
    place = folder / "engine"
    one = Bare(size, place, room)
    turns = [(one.stall(number), one.copy()) for number in range(rounds)]
    one.ck.close()
    shutil.rmtree(place)
    stalls = [stall for stall, _ in turns]
    return {"bytes": one.bytes, "saves": rounds, "p50_ms": statistics.median(stalls),
            "p99_ms": quantile(stalls, 0.99), "stalls_ms": stalls,
            "copy_ms": statistics.median(copy for _, copy in turns),
            "of_copy": interval([stall / copy for stall, copy in turns])}


def load(job: Job, folder: Path, disk: Raw) -> dict:
    """Measures a cold resume into the GPU, in turns with raw reads."""
    path = folder / "run"
    with holdfast.Checkpointer(path, model=job.model, optimizer=job.optimizer) as ck:
        ck.save(1)
    times, raws = [], []
    for _ in range(5):
        raws.append(disk.read())
        forget(path)
        with holdfast.Checkpointer(path, model=job.model, optimizer=job.optimizer) as ck:
            start = time.perf_counter()
            ck.resume()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    return {"seconds": statistics.median(times),
            "over_raw": interval(list(map(operator.truediv, times, raws)))}


def main() -> int:
    made = parser(__doc__, folder=Path("."), json=None, rounds=18)
    made.add_argument("--rivals", nargs="+", help="only these, by their names in the figures")
    made.add_argument("--first", help=argparse.SUPPRESS)
    made.add_argument("--rival", help=argparse.SUPPRESS)
    made.add_argument("--minutes", type=float, default=math.inf,
                      help="begin no further rival after so many; the same call continues on the same machine")
    made.add_argument("--layers", type=int, default=24)
    made.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS[:-1])
    options = made.parse_args()
    if options.first or options.rival:
        seen = first_in_this_process(options) if options.first else rival_in_this_process(options)
        print(json.dumps(seen))
        return 0
    goes_on = set(options.parts) <= {"rivals", "firsts"}
    figures = known_figures(options.json) if goes_on else {}

    def note(name: str, figure: Any) -> None:
        figures[name] = figure
        shown = figure
        if isinstance(figure, dict):
            shown = {k: shorten(v) for k, v in figure.items() if not isinstance(v, (dict, list)) or k == "times_s"}
        print(name, shown, flush=True)
        results.write(options.json, figures)  # after each, so that an interrupted run keeps its figures

    note("device", torch.cuda.get_device_name())
    note("torch", torch.__version__)
    note("run", this_run())
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="gpu-") as name:
        measure(Path(name), options, figures, note)
    return 0 if bars_of(figures).passed else 1


def shorten(value: Any) -> Any:
    if isinstance(value, Interval):
        return str(value)
    return round(value, 3) if isinstance(value, float) else value


def known_figures(path: Path | None) -> dict:
    """The rivals' figures of earlier calls, if they come from a machine like this one. Figures without
    their rounds and saves are of an older version."""
    if path is None or not path.exists():
        return {}
    known = json.loads(path.read_text())
    here = this_run()
    if any(known.get("run", {}).get(key) != here[key] for key in ("identity", "processor", "cores", "gpu", "torch")):
        print(f"{path}: comes from another machine or version; all rivals are measured again", flush=True)
        return {}
    return {name: with_intervals(one) for name, one in known.items() if not is_old(one)}


def is_old(figure: Any) -> bool:
    """True for an engine that failed, or whose file is of an older version."""
    return isinstance(figure, dict) and ("failed" in figure or "save_added_ms" in figure and "saves" not in figure)


def with_intervals(figure: Any) -> Any:
    """Figures from a file, whose intervals are lists there."""
    if not isinstance(figure, dict):
        return figure
    return {name: Interval(*one) if name.endswith(("added_ms", "of_raw")) and isinstance(one, list) else one
            for name, one in figure.items()}


def measure(folder: Path, options: argparse.Namespace, figures: dict,
            note: Callable[[str, Any], None]) -> None:
    parts, rounds, layers = options.parts, options.rounds, options.layers
    if "bare" in parts:
        for size, saves in ((int(0.21e9), 100), (int(4.3e9), 20)):
            for path in PATHS:
                torch.cuda.empty_cache()
                note(f"bare {size / 1e9:.2f} GB, {path}", bare(size, folder, saves, path == COPY))
    if "rivals" in parts:
        note("versions", versions())
        measure_rivals(options, figures, note)
    if "firsts" in parts:
        measure_firsts(options, figures, note)
    if not {"copy", "ring", "load"} & set(parts):
        return
    torch.cuda.empty_cache()
    job = Job(layers)
    note("bytes", job.bytes)
    disk = Raw(folder, job.bytes, WAYS)
    note("raw write", {"s": disk.write(), "block": disk.writing[0], "threads": disk.writing[1]})
    note("raw read", {"s": disk.read(), "block": disk.reading[0], "threads": disk.reading[1]})
    for part, path in (("copy", COPY), ("ring", RING)):
        if part in parts:
            note(f"Holdfast, {path}", measure_holdfast(job, folder, disk, rounds, path == COPY) | {"identity": identity()})
    if "load" in parts:
        note("load", load(job, folder, disk))


def bars_of(figures: dict) -> results.Bars:
    """Holds the figures that were measured against their bars."""
    bars = results.Bars()
    for path, most in ADDED.items():
        if loop := figures.get(f"Holdfast, {path}"):
            bars.at_most(f"added, {path}", loop["save_added_ms"], most, " ms")
            bars.at_most(f"first save, {path}", loop["first_added_ms"], 1.25 * most, " ms")
            bars.at_most(f"durable, {path}, of raw", loop["durable_of_raw"], 1.1)
    for size, most in (("0.21", 1), ("4.30", 5)):
        if seen := figures.get(f"bare {size} GB, {COPY}"):
            bars.at_most(f"stall p99 of {size} GB, {COPY}", seen["p99_ms"], most, " ms")
        if seen := figures.get(f"bare {size} GB, {RING}"):
            bars.at_most(f"stall of {size} GB, {RING}, of a pinned copy", seen["of_copy"], 1.1)
    if seen := figures.get("load"):
        bars.at_most("load, of a raw read", seen["over_raw"], 1 / 0.9)
    return bars


if __name__ == "__main__":
    sys.exit(main())
