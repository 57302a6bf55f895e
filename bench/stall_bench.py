"""Measures what a save costs the training loop, in turns with Holdfast and with other libraries.

    stall_bench.py [--bytes N] [--rounds N] [--ranks N ...] [--folder PATH] [--json PATH]

The state is fp32 parameters with the two moments of AdamW, sharded over the ranks, which save
together. The stall is the time that training waits: in the call that saves, and before the update
that follows. It is measured in two ways:

    hidden   after the save, training computes for several times as long as a copy takes
    bare     the update comes at once, so nothing hides the copy

Both are compared with a plain copy of the same bytes by one thread, into memory that was used
before. The added time is the wall time of the steps until the save is durable, minus the wall time
of as many steps without a save: on few cores the copy and the write compete with the computation. A
rival that does not sync its files is not synced here. On a virtual machine, a measurement during
which the host took a processor away ("steal") is repeated. For the first save of Holdfast, the
median over several jobs counts.
Bars: hidden at most 5 % of the copy, bare at most 1.2 times the copy, both below every rival; the
first save at most a quarter slower than the hidden bar; a step of 100 ms without a save at most
0.1 % slower, with a model of 2 tensors and with one of 300. The slowest of the first calls is told, too.
"""

import argparse
import contextlib
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from measuring import results
from measuring.machines import stolen
from measuring.options import parser
from measuring.paired import seconds_of
from measuring.rivals import (
    DcpAsync,
    Rival,
    Safetensors,
    TorchCheckpointing,
    TorchSave,
    installed,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.optim.optimizer import register_optimizer_step_pre_hook

import holdfast

TENSORS = 64
COLUMNS = 1024
SLOTS = ("exp_avg", "exp_avg_sq")
FIRSTS = 3  # the number of jobs whose first save is measured
TRIES = 5  # how often a measurement is made while the host of the machine disturbs it
HIDDEN, BARE, STEP_PART = 0.05, 1.2, 0.001  # the bars
IDLE_LAYERS = 1, 150  # each has 2 tensors
IDLE_CALLS = 100
STEP = 0.1  # seconds of the step that STEP_PART is a part of
FIRST = 1.25 * HIDDEN


def now() -> float:
    return time.perf_counter()


class Training:
    """A model with its optimizer, and a computation in place of forward and backward."""

    def __init__(self, size: int) -> None:
        world = dist.get_world_size()
        rows = size // 3 // 4 // TENSORS // COLUMNS // world  # on each rank
        mesh = init_device_mesh("cpu", (world,))
        parts = (torch.randn(rows, COLUMNS) for _ in range(TENSORS))
        self.model = nn.ParameterList(
            nn.Parameter(DTensor.from_local(part, mesh, [Shard(0)])) for part in parts
        )
        self.bytes = 3 * TENSORS * rows * COLUMNS * 4  # on this rank
        # Holdfast's hook runs between two hooks of this class, which measure the time it takes.
        self.waited, self._start = 0.0, 0.0
        register_optimizer_step_pre_hook(self._before_hook)
        self._last_hook: Any = None
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=True)
        for parameter in self.model:
            parameter.grad = DTensor.from_local(torch.randn(rows, COLUMNS), mesh, [Shard(0)])
        self.small = [torch.randn(256, 256) for _ in range(3)]  # small enough for the CPU's cache
        self.laps = 1

    def hooks_are_in_place(self) -> None:
        if self._last_hook is not None:
            self._last_hook.remove()
        self._last_hook = register_optimizer_step_pre_hook(self._after_hook)

    def _before_hook(self, *_: Any) -> None:
        self._start = now()

    def _after_hook(self, *_: Any) -> None:
        last, self._start = self._start, now()
        self.waited += self._start - last

    def state(self) -> dict[str, torch.Tensor]:
        named = {f"parameters.{i}": p.detach() for i, p in enumerate(self.model)}
        for i, parameter in enumerate(self.model):
            for slot in SLOTS:
                named[f"{slot}.{i}"] = self.optimizer.state[parameter][slot]
        return named

    def local(self) -> dict[str, torch.Tensor]:
        return {name: tensor.to_local() for name, tensor in self.state().items()}

    def compute(self, laps: int) -> None:
        a, b, out = self.small
        for _ in range(laps):
            torch.mm(a, b, out=out)

    def laps_for(self, seconds: float) -> int:
        """How many laps of compute() take that long, judged by the fastest of 10 tries."""
        self.compute(50)
        one = min(seconds_of(lambda: self.compute(50)) for _ in range(10)) / 50
        return max(1, round(seconds / one))


class Engine:
    """A library that saves the training's state, each time into a folder of its own."""

    def __init__(self, training: Training, folder: Path, rival: Rival) -> None:
        self.training, self.rival, self.name = training, rival, rival.name
        self.folder = folder / type(rival).__name__

    def save(self, number: int) -> None:
        state = self.training.state() if self.rival.cuts else self.training.local()
        self.rival.save(state, self.place(number))

    def update(self) -> AbstractContextManager[Any]:
        """The context in which the optimizer's step is made. Entering it waits for the copy."""
        return self.rival.updating()

    def is_durable(self) -> bool:
        return self.rival.is_written()

    def close(self) -> None:
        self.rival.close()

    def place(self, number: int) -> Path:
        return self.folder / str(number)


class Holdfast(Engine):
    name = "Holdfast"

    def __init__(self, training: Training, folder: Path) -> None:
        self.folder = folder / self.name
        self.ck = holdfast.Checkpointer(
            self.folder, model=training.model, optimizer=training.optimizer,
            every="1000000 steps", keep=1, failures=holdfast.Failures(signals=False),
        )  # fmt: skip
        self.ck.resume()
        self.handle: Any = None

    def save(self, number: int) -> None:
        self.handle = self.ck.save(number)

    def update(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def is_durable(self) -> bool:
        return self.handle.is_done and bool(self.handle.durable())

    def close(self) -> None:
        self.ck.close()


def all_ranks(value: Any) -> list[Any]:
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def slowest(value: float) -> float:
    return max(all_ranks(value))


def start_together() -> None:
    """Returns on all ranks at the same moment, by the clock that all processes share.

    Ranks leave a barrier up to half a millisecond apart, and the kernel often wakes two of them on
    one core while another core is idle. A save in which ranks wait for each other would be charged
    for both. Meanwhile each rank is therefore moved to a core of its own, if there are enough.
    """
    cores = sorted(os.sched_getaffinity(0))
    start = slowest(now()) + 0.003
    os.sched_setaffinity(0, {cores[dist.get_rank() % len(cores)]})  # this thread alone
    while now() < start:
        pass
    os.sched_setaffinity(0, cores)


class Bench:
    """One rank of the measurement. All ranks make the same calls."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.training = Training(options.bytes)
        own = self.begin(folder)
        self.numbers = itertools.count(1)
        self.figures: dict[str, dict[str, list[float]]] = {}
        self.state = list(self.training.local().values())
        self.copy = [torch.zeros_like(tensor) for tensor in self.state]
        self.copies = [self.plain_copy() for _ in range(3)]
        self.laps = self.training.laps_for(options.hide * min(self.copies))
        self.plain = [self.plain_step() for _ in range(3)]
        firsts = []
        for other in range(FIRSTS):
            if other > 0:
                own.close()
                own = self.begin(folder / str(other))
                for _ in range(4):  # in a job, too, the first save comes after some steps
                    self.plain_step()
            self.once(own, "hidden")
            firsts.append(self.figures[own.name]["hidden"].pop())
        self.figures[own.name]["hidden"].append(statistics.median(firsts))
        self.engines: list[Engine] = [own]
        self.engines += installed((TorchSave, Safetensors, DcpAsync, TorchCheckpointing), self.try_out,
                                  self.say)  # fmt: skip

    def begin(self, folder: Path) -> Holdfast:
        own = Holdfast(self.training, folder)
        self.training.hooks_are_in_place()
        self.training.optimizer.step()
        own.ck.step(0)
        return own

    def try_out(self, kind: type[Rival]) -> Engine:
        """The rival, after a save that shows whether it works here."""
        # Its threads send messages while training does, so it needs a group of its own.
        engine = Engine(self.training, self.folder, kind(dist.new_group(backend="gloo")))
        try:
            self.once(engine, "hidden")
        except Exception:
            self.figures.pop(kind.name, None)
            raise
        return engine

    def say(self, text: str) -> None:
        if dist.get_rank() == 0:
            print(text, flush=True)

    def plain_copy(self) -> float:
        return self.undisturbed(lambda: [a.copy_(b) for a, b in zip(self.copy, self.state)])

    def plain_step(self) -> float:
        return self.undisturbed(self.step)

    def undisturbed(self, work: Callable[[], Any]) -> float:
        """How long the work takes on the slowest rank. Repeats it if the host disturbed it."""
        for _ in range(TRIES):
            start_together()
            before = stolen()
            took = slowest(seconds_of(work))
            if slowest(stolen() - before) == 0:
                break
        return took

    def step(self) -> None:
        self.training.compute(self.laps)
        self.training.optimizer.step()

    def round(self) -> None:
        self.copies.append(self.plain_copy())
        self.plain.append(self.plain_step())
        for engine in self.engines:
            for how in ("hidden", "bare"):
                for last in range(TRIES - 1, -1, -1):
                    if self.once(engine, how, keep=last == 0):
                        break
        self.plain.append(self.plain_step())

    def once(self, engine: Engine, how: str, keep: bool = True) -> bool:
        """Makes one save and steps until it is durable, then removes its files.

        Returns False if the host disturbed the measurement, which then does not count. With
        `keep` it counts in any case.
        """
        number = next(self.numbers)
        start_together()
        before, start = stolen(), now()
        stall = self.save(engine, number, self.laps if how == "hidden" else 0)
        good = slowest(stolen() - before) == 0 or keep
        steps = 1
        while not all(all_ranks(engine.is_durable())):
            self.step()
            steps += 1
        wall = now() - start
        kept = self.figures.setdefault(engine.name, {"hidden": [], "bare": [], "added": []})
        stall, wall = slowest(stall), slowest(wall)
        if good:
            kept[how].append(stall)
        if good and how == "hidden":
            kept["added"].append(wall - steps * statistics.median(self.plain))
        dist.barrier()
        if dist.get_rank() == 0:
            os.sync()
            shutil.rmtree(engine.place(number), ignore_errors=True)
        dist.barrier()
        return good

    def save(self, engine: Engine, number: int, laps: int) -> float:
        """Makes a save and the step after it. Returns how long training waited."""
        training = self.training
        training.waited = 0.0
        start = now()
        engine.save(number)
        saved = now()
        training.compute(laps)
        ready = now()
        with engine.update():
            entered = now()
            training.optimizer.step()
        return (saved - start) + (entered - ready) + training.waited

    def close(self) -> None:
        for engine in self.engines:
            engine.close()


def step_overhead(training: Training, folder: Path, layers: int) -> dict[str, float]:
    """What Checkpointer.step() and the hooks cost a step of about 100 ms if nothing is saved.

    The slowest of the first calls is told, too: in these, Holdfast looks at what is around the training.
    """
    torch.manual_seed(0)  # the same on all ranks
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers)))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    laps = training.laps_for(STEP)
    calls: list[float] = []
    with holdfast.Checkpointer(folder / f"idle-{layers}", model=model, optimizer=optimizer,
                               every="1000000 steps",
                               failures=holdfast.Failures(signals=False)) as ck:
        ck.resume()
        training.hooks_are_in_place()
        for step in range(IDLE_CALLS):
            training.waited = 0.0
            training.compute(laps)
            dist.all_reduce(model[0].bias.grad, dist.ReduceOp.MAX)  # keeps the ranks together
            optimizer.step()
            calls.append(seconds_of(lambda step=step: ck.step(step)) + training.waited)
    batches = [statistics.mean(calls[i : i + 10]) for i in range(20, IDLE_CALLS, 10)]
    took = slowest(statistics.median(batches))
    return {"paid_us": 1e6 * took, "part": took / STEP, "slowest_us": 1e6 * slowest(max(calls))}


def rank_main(rank: int, world: int, options: argparse.Namespace, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    bench = Bench(options, Path(folder))
    for _ in range(options.rounds):
        bench.round()
    # A training has one Checkpointer. The hooks of this one would be measured below, too.
    bench.close()
    figures = {"copy": bench.copies[3:], "step": statistics.median(bench.plain),
               "bytes": bench.training.bytes, "engines": bench.figures,
               "idle": {2 * layers: step_overhead(bench.training, Path(folder), layers)
                        for layers in IDLE_LAYERS}}
    if rank == 0:
        Path(folder, "figures.json").write_text(json.dumps(figures))
    dist.destroy_process_group()


def measure(world: int, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="stall-") as folder:
        torch.multiprocessing.spawn(rank_main, (world, options, folder), nprocs=world)
        return json.loads(Path(folder, "figures.json").read_text())


def report(world: int, figures: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    copy = statistics.median(figures["copy"])
    print(f"{world} rank{'s' if world > 1 else ''}, {figures['bytes'] >> 20} MiB each: "
          f"copy {copy * 1e3:.0f} ms, step {figures['step'] * 1e3:.0f} ms")
    print(f"{'':24} {'hidden':>8} {'of copy':>8} {'first':>8} {'bare':>8} {'of copy':>8} "
          f"{'added':>8}   ms")
    rows = {}
    for name, kept in figures["engines"].items():
        first, *hidden = kept["hidden"]
        row = {"first": first, "hidden": statistics.median(hidden),
               "bare": statistics.median(kept["bare"]),
               "added": statistics.median(kept["added"][1:])}
        rows[name] = row
        print(f"  {name:22} {row['hidden'] * 1e3:8.1f} {row['hidden'] / copy:8.3f} "
              f"{first * 1e3:8.1f} {row['bare'] * 1e3:8.1f} {row['bare'] / copy:8.2f} "
              f"{row['added'] * 1e3:8.0f}")
    own = rows[Holdfast.name]
    others = [row for name, row in rows.items() if name != Holdfast.name]
    bars = results.Bars()
    bars.at_most("hidden, of a copy", own["hidden"] / copy, HIDDEN)
    bars.at_most("bare, of a copy", own["bare"] / copy, BARE)
    bars.at_most("first save, of a copy", own["first"] / copy, FIRST)
    for how in ("hidden", "bare"):
        bars.at_most(f"{how}, of the best rival", own[how] / min(row[how] for row in others), 1.0)
    for tensors, idle in figures["idle"].items():
        bars.at_most(f"idle step of 100 ms, {tensors} tensors ({idle['paid_us']:.1f} us)", idle["part"],
                     STEP_PART)
        bars.show(f"slowest of its first {IDLE_CALLS} calls", idle["slowest_us"] / 1e3, "ms")
    return {"copy": copy, "rows": rows, "idle": figures["idle"], "bars": bars.figures}, bars.passed


def main() -> int:
    options = options_of()
    kept, good = {}, True
    for world in options.ranks:
        kept[world], passed = report(world, measure(world, options))
        good &= passed
    results.write(options.json, kept)
    return 0 if good else 1


def options_of() -> argparse.Namespace:
    made = parser(__doc__, bytes=1200 << 20, rounds=5, folder=Path("."), json=None)
    made.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    made.add_argument("--hide", type=float, default=3.0,
                      help="how many times as long as a copy a step computes")
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
