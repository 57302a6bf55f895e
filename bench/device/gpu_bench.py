"""What a save costs a training loop on a GPU: Holdfast beside its rivals, in one run.

    gpu_bench.py [--folder PATH] [--json PATH] [--rounds N] [--layers N] [--parts PART ...]

A GPT of about 336 million parameters with fused AdamW under bf16 autocast, 4 GB of state:

  added      device time that a save adds to the loop: how much longer the steps after it
             take than the median step; of every step after it the median of the rounds,
             because the machine has hiccups of its own. The first save of an engine apart.
  durable    from the call until all is on the disk, of the time of a raw direct write of a
             new file, in turns
  load       cold, into the GPU, of the time of a raw direct read, in turns

and bare, 300 fp32 tensors: the stall, from the call until an update may begin, device work
included; updates alone come between two saves. Bars: added 4 ms with room for a copy inside
the GPU, 15 ms without; stall p99 1 ms of 0.2 GB and 5 ms of 4.3 GB, 1.1 of a plain copy into
pinned memory without room; durable and load 0.9 of raw. torch_checkpointing is among the
rivals where it is installed.
"""

import argparse
import contextlib
import importlib.util
import json
import math
import mmap
import operator
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn import functional as F

import holdfast

BLOCK = 16 << 20
PARTS = ["loop", "bare", "load", "rivals"]
PATHS = COPY, RING = "copy inside the GPU", "pinned ring"


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).unbind(2)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int = 1024, vocabulary: int = 32000) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, 16) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embed.weight)


class Job:
    """A training loop whose steps take about 100 ms."""

    update: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext

    def __init__(self, layers: int) -> None:
        torch.manual_seed(0)
        self.model = Gpt(layers).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.tokens = torch.randint(0, 32000, (8, 1024), device="cuda")
        self.step()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(3):
            self.step()
        torch.cuda.synchronize()
        self.passes = max(1, round(0.1 / ((time.perf_counter() - start) / 3)))

    def step(self) -> None:
        for _ in range(getattr(self, "passes", 1)):
            with torch.autocast("cuda", torch.bfloat16):
                logits = self.model(self.tokens)
                loss = F.cross_entropy(logits.flatten(0, 1), self.tokens.flatten())
            loss.backward()
        with self.update():
            self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    @property
    def bytes(self) -> int:
        tensors = [*self.model.parameters()]
        for slots in self.optimizer.state.values():
            tensors += [value for value in slots.values() if isinstance(value, torch.Tensor)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Holdfast:
    def __init__(self, job: Job, folder: Path, **options) -> None:
        self.ck = holdfast.Checkpointer(
            folder / "run", model=job.model, optimizer=job.optimizer, every="1000000 steps",
            keep=1, **options)
        self.ck.resume()
        self.events = folder / "run" / "events" / "rank-0000.jsonl"
        self.number = 0
        time.sleep(3)  # as in a job, where the first save comes minutes after the start

    def save(self) -> None:
        self.number += 1
        self.handle = self.ck.save(self.number)

    def wait(self) -> None:
        self.ck._settle()
        self.handle.durable()

    def durable_s(self) -> float:
        """Of the last save, as it says itself: it was done long before the loop."""
        return self.last("save_durable")["seconds"]

    def last(self, name: str) -> dict:
        lines = self.events.read_text().splitlines()
        return next(event for event in map(json.loads, reversed(lines)) if event["event"] == name)

    def times(self) -> dict:
        """Where the last save's time went, in seconds."""
        written = self.last("save_written")
        return {"captured": self.last("save_captured")["seconds"]} | {
            part: written[part] for part in ("stage", "digest", "disk", "sync", "seconds")}

    def close(self) -> None:
        self.ck.close()


class TorchSave:
    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.path = job, folder / "state.pt"

    def save(self) -> None:
        torch.save(self.job.state(), self.path)
        self.sync(self.path)

    @staticmethod
    def sync(path: Path) -> None:
        number = os.open(path, os.O_RDONLY)
        os.fsync(number)
        os.close(number)

    def wait(self) -> None:
        pass

    def durable_s(self) -> None:
        """Not known but by waiting."""

    def close(self) -> None:
        pass


class DcpAsync(TorchSave):
    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.path = job, folder / "dcp"

    def save(self) -> None:
        self.future = dcp.async_save(self.job.state(), checkpoint_id=self.path, no_dist=True)

    def wait(self) -> None:
        self.future.result()
        for path in self.path.rglob("*"):
            self.sync(path)


class TorchCheckpointing(TorchSave):
    """Of the package torch_checkpointing; `update` is where it waits for its staging."""

    def __init__(self, job: Job, folder: Path) -> None:
        from torch_checkpointing import CheckpointManager
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        self.job, self.path, self.number = job, folder, 0
        config = CheckpointManager.Config.with_async_save()
        # Its direct writes fail where a tensor's bytes are no multiple of a block.
        config.storage_config = LocalFileSystemStorageConfig(use_direct_io=False)
        self.manager = config.build()
        job.update = self.manager.lock

    def save(self) -> None:
        self.number += 1
        self.future = self.manager.save(str(self.path / str(self.number)), self.job.state())

    def wait(self) -> None:
        self.future.result()
        for path in self.path.rglob("*"):
            self.sync(path)

    def close(self) -> None:
        self.manager.close()
        del self.job.update


def loop(job: Job, steps: int, save: Callable[[], None]) -> list[float]:
    """By how many milliseconds each step after a save was longer than the median step."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    for step in range(steps):
        if step == steps // 3:
            save()
        job.step()
        marks[step + 1].record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in zip(marks, marks[1:], strict=False)]
    usual = statistics.median(times)
    return [round(time - usual, 3) for time in times[steps // 3 :]]


def added(job: Job, engine, rounds: int, steps: int, disk: "Raw") -> dict:
    """Milliseconds that a save added, and seconds until it was durable."""
    durables, traces, raws = [], [], []
    for _ in range(rounds):
        begun = []

        def save() -> None:
            begun.append(time.perf_counter())
            engine.save()

        traces.append(loop(job, steps, save))
        engine.wait()
        durables.append(engine.durable_s() or time.perf_counter() - begun[0])
        time.sleep(0.5)
        raws.append(disk.write())
    usual = [statistics.median(step) for step in zip(*traces[1:], strict=True)]
    return {"first_ms": sum(usual[1:]) + traces[0][0], "added_ms": sum(usual),
            "at_once_ms": [trace[0] for trace in traces],
            "durable_s": statistics.median(durables[1:]),
            "durable_of_raw": statistics.median(map(operator.truediv, durables[1:], raws[1:])),
            "steps_ms": traces}


class Raw:
    """Direct transfers of so many bytes, as fast as the disk takes them: the best of a sweep."""

    def __init__(self, folder: Path, size: int) -> None:
        self.path = folder / "raw"
        self.memory = memoryview(mmap.mmap(-1, size // BLOCK * BLOCK))
        self.memory[:] = bytes(len(self.memory))
        self.size = size
        ways = [(block, threads) for block in (BLOCK // 4, BLOCK) for threads in (8, 16)]
        self.writing = min(ways, key=self.write)
        self.reading = min(ways, key=self.read)

    def write(self, way: tuple[int, int] | None = None) -> float:
        """Seconds, with sync, into a new file, as a checkpoint is one."""
        self.path.unlink(missing_ok=True)
        number = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o644)
        start = time.perf_counter()
        self.run(way or self.writing,
                 lambda at, end: os.pwrite(number, self.memory[at:end], at))
        os.fdatasync(number)
        return self.took(start, number)

    def read(self, way: tuple[int, int] | None = None) -> float:
        number = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        start = time.perf_counter()
        self.run(way or self.reading,
                 lambda at, end: os.preadv(number, [self.memory[at:end]], at))
        return self.took(start, number)

    def run(self, way: tuple[int, int], transfer: Callable[[int, int], int]) -> None:
        block, threads = way
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda at: transfer(at, at + block),
                          range(0, len(self.memory), block)))

    def took(self, start: float, number: int) -> float:
        seconds = time.perf_counter() - start
        os.close(number)
        return seconds * self.size / len(self.memory)


class Bare:
    """300 tensors, updated alone, with room for a copy of them inside the GPU or without."""

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
                                        ring=0 if room else self.bytes + (64 << 20))
        self.ck.resume()
        begun = time.monotonic()
        while time.monotonic() < begun + 4:  # as in a job, where the first save comes later
            self.update()

    def update(self) -> None:
        """As small as can be, of all tensors."""
        with torch.no_grad():
            torch._foreach_add_(list(self.model.parameters()), 1e-6)
        torch.cuda.synchronize()

    def stall(self, number: int) -> float:
        """Milliseconds from the call until an update may begin."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        handle = self.ck.save(number)
        self.ck._settle()
        torch.cuda.current_stream().synchronize()  # what comes after goes on
        took = (time.perf_counter() - start) * 1e3
        while not handle.is_done:  # training does not sleep
            self.update()
        handle.durable()
        return took

    def copy(self) -> float:
        """Of all tensors, by torch: inside the GPU, or into pinned memory."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        for to, parameter in zip(self.memory.split(self.elements), self.model, strict=True):
            to.copy_(parameter.detach(), non_blocking=True)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3


def bare(size: int, folder: Path, rounds: int, room: bool) -> dict:
    """The stall of saves, and plain copies in turns with them."""
    place = folder / "engine"
    one = Bare(size, place, room)
    turns = [(one.stall(number), one.copy()) for number in range(rounds)]
    one.ck.close()
    shutil.rmtree(place)
    stalls = sorted(stall for stall, _ in turns)
    return {"bytes": one.bytes, "saves": rounds, "p50_ms": statistics.median(stalls),
            "p99_ms": stalls[math.ceil(0.99 * rounds) - 1], "worst_ms": stalls[-1],
            "copy_ms": statistics.median(copy for _, copy in turns),
            "of_copy": statistics.median(stall / copy for stall, copy in turns)}


def fill_memory(but: int) -> torch.Tensor:
    """Takes all of the GPU's memory but so many bytes."""
    free, _ = torch.cuda.mem_get_info()
    return torch.empty(max(0, free - but), dtype=torch.uint8, device="cuda")


def load(job: Job, folder: Path, disk: Raw) -> dict:
    """Seconds of a cold resume into the GPU."""
    path = folder / "run"
    with holdfast.Checkpointer(path, model=job.model, optimizer=job.optimizer) as ck:
        ck.save(1)
    times, raws = [], []
    for _ in range(5):
        raws.append(disk.read())
        for file in path.rglob("*"):
            if file.is_file():
                number = os.open(file, os.O_RDONLY)
                os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(number)
        with holdfast.Checkpointer(path, model=job.model, optimizer=job.optimizer) as ck:
            start = time.perf_counter()
            ck.resume()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    return {"seconds": statistics.median(times),
            "of_raw": statistics.median(map(operator.truediv, raws, times))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("."))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    figures: dict = {}

    def note(name: str, figure: Any) -> None:
        figures[name] = figure
        shown = figure
        if isinstance(figure, dict):
            shown = {k: round(v, 3) if isinstance(v, float) else v
                     for k, v in figure.items() if k != "steps_ms"}
        print(name, shown, flush=True)
        if options.json:  # a run that is cut short has something to show
            options.json.write_text(json.dumps(figures, indent=2) + "\n")

    note("device", torch.cuda.get_device_name())
    note("torch", torch.__version__)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="gpu-") as name:
        measure(Path(name), options.parts, options.rounds, options.layers, note)
    return judge(figures)


def measure(folder: Path, parts: list[str], rounds: int, layers: int,
            note: Callable[[str, Any], None]) -> None:
    if "bare" in parts:
        for size, saves in ((int(0.21e9), 100), (int(4.3e9), 20)):
            for path in PATHS:
                torch.cuda.empty_cache()
                note(f"bare {size / 1e9:.2f} GB, {path}", bare(size, folder, saves, path == COPY))
    if parts == ["bare"]:
        return
    torch.cuda.empty_cache()
    job = Job(layers)
    note("bytes", job.bytes)
    disk = Raw(folder, job.bytes)
    note("raw write", {"s": disk.write(), "block": disk.writing[0], "threads": disk.writing[1]})
    note("raw read", {"s": disk.read(), "block": disk.reading[0], "threads": disk.reading[1]})
    if "loop" in parts:
        for path, make in zip(PATHS, (Holdfast, without_room), strict=True):
            note(f"Holdfast, {path}", measure_engine(job, folder, make, disk, rounds, 30))
    if "load" in parts:
        note("load", load(job, folder, disk))
    if "rivals" in parts:
        rivals = {"torch.save": TorchSave, "DCP async_save": DcpAsync}
        if importlib.util.find_spec("torch_checkpointing"):
            rivals["torch_checkpointing"] = TorchCheckpointing
        for name, make in rivals.items():
            note(name, measure_engine(job, folder, make, disk, 3, 10))


def measure_engine(job: Job, folder: Path, make: Callable, disk: Raw, rounds: int,
                   steps: int) -> dict:
    place = folder / "engine"
    place.mkdir()
    engine = make(job, place)
    figures = added(job, engine, rounds, steps, disk)
    if isinstance(engine, Holdfast):
        figures["times_s"] = engine.times()
    engine.close()
    shutil.rmtree(place)
    torch.cuda.empty_cache()
    return figures


def without_room(job: Job, folder: Path) -> Holdfast:
    """With too little memory on the GPU for a copy of the state."""
    job.step()  # so that what a step needs is taken already
    torch.cuda.synchronize()
    filler = fill_memory(2 << 30)
    engine = Holdfast(job, folder, ring=job.bytes + (64 << 20))
    engine.filler = filler
    return engine


def judge(figures: dict) -> int:
    bars: list[tuple[str, float, float]] = []
    for path, most, stalls in ((COPY, 4, {"0.21": 1, "4.30": 5}), (RING, 15, {})):
        if loop := figures.get(f"Holdfast, {path}"):
            bars += [(f"added, {path}, ms", loop["added_ms"], most),
                     (f"first save, {path}, ms", loop["first_ms"], 1.25 * loop["added_ms"]),
                     (f"durable, {path}, of raw", loop["durable_of_raw"], 1.1)]
        for size, stall in stalls.items():
            if seen := figures.get(f"bare {size} GB, {path}"):
                bars.append((f"stall p99 of {size} GB, {path}, ms", seen["p99_ms"], stall))
    for size in ("0.21", "4.30"):
        if seen := figures.get(f"bare {size} GB, {RING}"):
            bars.append((f"stall of {size} GB, {RING}, of a pinned copy", seen["of_copy"], 1.1))
    if seen := figures.get("load"):
        bars.append(("raw read time of load", 1 / seen["of_raw"], 1 / 0.9))
    for what, value, bar in bars:
        print(f"  {what}: {value:.2f}, want at most {bar:.2f}  {'PASS' if value <= bar else 'FAIL'}")
    return 0 if all(value <= bar for _, value, bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
