"""What a save costs the training loop: Holdfast beside what others use, by turns.

    stall_bench.py [--bytes N] [--rounds N] [--ranks N ...] [--folder PATH] [--json PATH]

The state is fp32 parameters with the two moments of AdamW, cut over the ranks, which save
together. Stall is what the trainer waits for: in the call that saves, and before the update
that follows. It is measured twice:

    hidden   the save is followed by compute that takes several times as long as the copy
    bare     the update comes at once, so nothing hides the copy

beside a plain copy of the same bytes by one thread into memory that was touched before.
Added is the wall time of the steps until the save is durable, above that of as many plain
ones: on few cores the copy and the write compete with compute. A rival that does not sync
is not made to, here. On a virtual machine, what was measured while its host took a processor
away ("steal") is measured again. The first save of Holdfast is the median of several jobs'.
Bars: hidden 5 % of the copy, bare 1.2 times the copy, both below every rival, the first save
a quarter dearer at most; a step of 100 ms with nothing to save 0.1 % dearer.
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

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.optim.optimizer import register_optimizer_step_pre_hook

import holdfast

TENSORS = 64
COLUMNS = 1024
SLOTS = ("exp_avg", "exp_avg_sq")
FIRSTS = 3  # jobs of which the first save is measured
TRIES = 5  # of a measurement that the machine's host disturbs
HIDDEN, BARE, STEP_PART = 0.05, 1.2, 0.001  # the bars
FIRST = 1.25 * HIDDEN


def now() -> float:
    return time.perf_counter()


class Training:
    """A model with its optimizer, and compute that stands for forward and backward."""

    def __init__(self, size: int) -> None:
        world = dist.get_world_size()
        rows = size // 3 // 4 // TENSORS // COLUMNS // world  # of one rank's part
        mesh = init_device_mesh("cpu", (world,))
        parts = (torch.randn(rows, COLUMNS) for _ in range(TENSORS))
        self.model = nn.ParameterList(
            nn.Parameter(DTensor.from_local(part, mesh, [Shard(0)])) for part in parts
        )
        self.bytes = 3 * TENSORS * rows * COLUMNS * 4  # of this rank
        # Holdfast's hook lies between two of ours, which take the time.
        self.waited, self._start = 0.0, 0.0
        register_optimizer_step_pre_hook(self._before_hook)
        self._last_hook: Any = None
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=True)
        for parameter in self.model:
            parameter.grad = DTensor.from_local(torch.randn(rows, COLUMNS), mesh, [Shard(0)])
        self.small = [torch.randn(256, 256) for _ in range(3)]  # stays in the cache
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
        """How much compute takes that long, by the quickest of some tries."""
        self.compute(50)
        one = min(timed(lambda: self.compute(50)) for _ in range(10)) / 50
        return max(1, round(seconds / one))


def timed(work: Callable[[], Any]) -> float:
    start = now()
    work()
    return now() - start


class Engine:
    """How something is saved by one who uses it as its manual says."""

    name = ""

    def __init__(self, training: Training, folder: Path) -> None:
        self.training = training
        self.folder = folder / type(self).__name__

    def save(self, number: int) -> None:
        raise NotImplementedError

    def update(self) -> AbstractContextManager[Any]:
        """What an update is wrapped in; entering it waits for the copy."""
        return contextlib.nullcontext()

    def is_durable(self) -> bool:
        return True

    def close(self) -> None: ...

    def place(self, number: int) -> Path:
        return self.folder / str(number)


class Holdfast(Engine):
    name = "Holdfast"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self.ck = holdfast.Checkpointer(
            self.folder, model=training.model, optimizer=training.optimizer,
            every="1000000 steps", keep=1, failures=holdfast.Failures(signals=False),
        )  # fmt: skip
        self.ck.resume()
        self.handle: Any = None

    def save(self, number: int) -> None:
        self.handle = self.ck.save(number)

    def is_durable(self) -> bool:
        return self.handle.is_done and bool(self.handle.durable())

    def close(self) -> None:
        self.ck.close()


class TorchSave(Engine):
    name = "torch.save"

    def save(self, number: int) -> None:
        self.place(number).mkdir(parents=True, exist_ok=True)
        torch.save(self.training.local(), self.place(number) / f"{dist.get_rank()}.pt")


class Safetensors(Engine):
    name = "safetensors"

    def save(self, number: int) -> None:
        self.place(number).mkdir(parents=True, exist_ok=True)
        path = self.place(number) / f"{dist.get_rank()}.safetensors"
        safetensors.torch.save_file(self.training.local(), path)


class DcpAsync(Engine):
    name = "DCP async_save"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self.future: Any = None
        self.group = dist.new_group(backend="gloo")  # its thread talks while training does

    def save(self, number: int) -> None:
        self.future = dcp.async_save(self.training.state(), checkpoint_id=self.place(number),
                                     process_group=self.group)

    def is_durable(self) -> bool:
        return self.future.done() and self.future.result() is not self


class TorchCheckpointing(Engine):
    name = "torch_checkpointing"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        from torch_checkpointing import CheckpointManager
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        config = CheckpointManager.Config.with_async_save()
        # Its direct writes fail where a tensor's bytes are no multiple of a block.
        config.storage_config = LocalFileSystemStorageConfig(use_direct_io=False)
        self.manager = config.build()
        self.future: Any = None

    def save(self, number: int) -> None:
        self.future = self.manager.save(str(self.place(number)), {"state": self.training.local()})

    def update(self) -> AbstractContextManager[Any]:
        return self.manager.lock()

    def is_durable(self) -> bool:
        return self.future.done() and self.future.result() is not self

    def close(self) -> None:
        self.manager.close()


def stolen() -> int:
    """Ticks that the machine's host has taken from it; 0 where it does not tell."""
    with contextlib.suppress(OSError, IndexError), open("/proc/stat", encoding="ascii") as stat:
        return int(stat.readline().split()[8])
    return 0


def all_ranks(value: Any) -> list[Any]:
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def slowest(value: float) -> float:
    return max(all_ranks(value))


class Bench:
    """One rank of the measurement; all make the same calls."""

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
                for _ in range(4):  # as in a job, where the first save comes later
                    self.plain_step()
            self.once(own, "hidden")
            firsts.append(self.figures[own.name]["hidden"].pop())
        self.figures[own.name]["hidden"].append(statistics.median(firsts))
        self.engines: list[Engine] = [own]
        for kind in (TorchSave, Safetensors, DcpAsync, TorchCheckpointing):
            self.add(kind)

    def begin(self, folder: Path) -> Holdfast:
        own = Holdfast(self.training, folder)
        self.training.hooks_are_in_place()
        self.training.optimizer.step()
        own.ck.step(0)
        return own

    def add(self, kind: type[Engine]) -> None:
        try:
            engine = kind(self.training, self.folder)
            self.once(engine, "hidden")
            self.engines.append(engine)
        except Exception as error:  # noqa: BLE001: a rival may fail in any way
            self.say(f"  {kind.name}: left out, {type(error).__name__}: {error}")
            self.figures.pop(kind.name, None)

    def say(self, text: str) -> None:
        if dist.get_rank() == 0:
            print(text, flush=True)

    def plain_copy(self) -> float:
        return self.undisturbed(lambda: [a.copy_(b) for a, b in zip(self.copy, self.state)])

    def plain_step(self) -> float:
        return self.undisturbed(self.step)

    def undisturbed(self, work: Callable[[], Any]) -> float:
        """How long it takes the slowest rank."""
        for _ in range(TRIES):
            dist.barrier()
            before = stolen()
            took = slowest(timed(work))
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
        """One save, the steps until it is durable, and what it left on the disk removed.

        False if it was disturbed, and is not to be kept nevertheless.
        """
        number = next(self.numbers)
        dist.barrier()
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
        """A save and the step after it; how long that waited."""
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


def step_overhead(training: Training, folder: Path) -> dict[str, float]:
    """What a step of about 100 ms pays for being able to save: the call, and the hooks."""
    torch.manual_seed(0)  # the same on all ranks
    model = nn.Linear(8, 8)
    model.weight.grad, model.bias.grad = torch.ones(8, 8), torch.ones(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    laps = training.laps_for(0.1)
    with holdfast.Checkpointer(folder / "idle", model=model, optimizer=optimizer,
                               every="1000000 steps",
                               failures=holdfast.Failures(signals=False)) as ck:
        ck.resume()
        training.hooks_are_in_place()
        paid, parts = [], []
        for batch in range(8):
            training.waited, in_calls, start = 0.0, 0.0, now()
            for i in range(10):
                training.compute(laps)
                dist.all_reduce(model.bias.grad, dist.ReduceOp.MAX)  # ranks go in step
                optimizer.step()
                in_calls += timed(lambda step=batch * 10 + i: ck.step(step))
            wall = now() - start
            paid.append((in_calls + training.waited) / 10)
            parts.append((in_calls + training.waited) / wall)
    return {"paid_us": 1e6 * slowest(statistics.median(paid[2:])),
            "part": slowest(statistics.median(parts[2:]))}


def rank_main(rank: int, world: int, options: argparse.Namespace, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    bench = Bench(options, Path(folder))
    for _ in range(options.rounds):
        bench.round()
    bench.close()  # a training has one Checkpointer: the hooks of a second would be paid too
    figures = {"copy": bench.copies[3:], "step": statistics.median(bench.plain),
               "bytes": bench.training.bytes, "engines": bench.figures,
               "idle": step_overhead(bench.training, Path(folder))}
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
    idle = figures["idle"]
    bars = [
        ("hidden, of a copy", own["hidden"] / copy, HIDDEN),
        ("bare, of a copy", own["bare"] / copy, BARE),
        ("first save, of a copy", own["first"] / copy, FIRST),
        ("hidden, of the best rival", own["hidden"] / min(r["hidden"] for r in others), 1.0),
        ("bare, of the best rival", own["bare"] / min(r["bare"] for r in others), 1.0),
        (f"idle step of 100 ms ({idle['paid_us']:.1f} us)", idle["part"], STEP_PART),
    ]
    good = True
    for what, seen, bar in bars:
        good &= seen <= bar
        print(f"  {what}: {seen:.4g}, want {bar} at most  {'PASS' if seen <= bar else 'FAIL'}")
    return {"copy": copy, "rows": rows, "bars": {what: seen for what, seen, _ in bars}}, good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=1200 << 20, help="of all ranks together")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--hide", type=float, default=3.0, help="compute a step, in copies")
    parser.add_argument("--folder", type=Path, default=Path("."))
    parser.add_argument("--json", type=Path)
    options, _ = parser.parse_known_args()  # those of other benchmarks
    kept, good = {}, True
    for world in options.ranks:
        kept[world], passed = report(world, measure(world, options))
        good &= passed
    if options.json:
        options.json.write_text(json.dumps(kept, indent=2) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
