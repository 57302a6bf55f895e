"""Compares Holdfast with other libraries: the same state, the same folder, in turns.

    rivals_bench.py [--bytes N] [--rounds N] [--folder PATH] [--json PATH]

A write counts until its bytes are durable; the files of a library that does not call fsync are
synced here. Loads are cold, and end when the values are in the tensors' memory; only Holdfast
checks digests on the way. "Raw" is the device alone: 4 threads transfer blocks with O_DIRECT, from
and into the same amount of memory.
Bars: a durable write is 1.5 times as fast as that of the best rival, a cold load is faster than
that of every rival.
"""

import argparse
import json
import mmap
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

import holdfast

TENSORS = 100
BLOCK = 16 << 20
State = dict[str, torch.Tensor]


def sync(folder: Path) -> None:
    """Calls fsync for everything in the folder, as a careful user would."""
    for path in [*folder.rglob("*"), folder]:
        number = os.open(path, os.O_RDONLY)
        os.fsync(number)
        os.close(number)


def forget(folder: Path) -> None:
    """Removes the folder's files from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            number = os.open(path, os.O_RDONLY)
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(number)
    if os.geteuid() == 0:
        Path("/proc/sys/vm/drop_caches").write_text("1")


class Raw:
    """Writes and reads the same number of bytes without any library."""

    name = "raw, direct 16 MiB x 4"

    def __init__(self, size: int) -> None:
        self.memory = memoryview(mmap.mmap(-1, size // BLOCK * BLOCK))
        for at in range(0, len(self.memory), BLOCK):
            self.memory[at : at + BLOCK] = random.randbytes(BLOCK)

    def save(self, state: State, folder: Path) -> None:
        flags = os.O_CREAT | os.O_RDWR | os.O_DIRECT
        number = os.open(folder / "raw", flags, 0o644)
        os.posix_fallocate(number, 0, len(self.memory))
        self._each(lambda at: os.pwrite(number, self.memory[at : at + BLOCK], at))
        os.fdatasync(number)
        os.close(number)

    def load(self, state: State, folder: Path) -> None:
        number = os.open(folder / "raw", os.O_RDONLY | os.O_DIRECT)
        self._each(lambda at: os.preadv(number, [self.memory[at : at + BLOCK]], at))
        os.close(number)

    def _each(self, transfer: Callable[[int], int]) -> None:
        with ThreadPoolExecutor(4) as threads:
            done = sum(threads.map(transfer, range(0, len(self.memory), BLOCK)))
        assert done == len(self.memory), done


class Holdfast:
    name = "Holdfast"

    def __init__(self) -> None:
        self.saver: holdfast.Saver | None = None
        self.step = 0

    def save(self, state: State, folder: Path) -> None:
        if self.saver is None:
            self.saver = holdfast.Saver(folder / "run")
        self.step += 1
        self.saver.save(self.step, state).durable()

    def load(self, state: State, folder: Path) -> None:
        holdfast.restore(folder / "run", state)

    def clear(self, folder: Path) -> None:
        for path in (folder / "run").glob("step-*"):
            shutil.rmtree(path)


class TorchSave:
    name = "torch.save"
    mapped = False

    def save(self, state: State, folder: Path) -> None:
        torch.save(state, folder / "state.pt")
        sync(folder)

    def load(self, state: State, folder: Path) -> None:
        loaded = torch.load(folder / "state.pt", mmap=self.mapped, weights_only=True)
        fill(state, loaded)


class TorchSaveMapped(TorchSave):
    name = "torch.save, mmap"
    mapped = True


class Safetensors:
    name = "safetensors"

    def save(self, state: State, folder: Path) -> None:
        safetensors.torch.save_file(state, folder / "state.safetensors")
        sync(folder)

    def load(self, state: State, folder: Path) -> None:
        fill(state, safetensors.torch.load_file(folder / "state.safetensors"))


class Dcp:
    name = "DCP save"

    def save(self, state: State, folder: Path) -> None:
        dcp.save(state, checkpoint_id=folder / "dcp", no_dist=True)
        sync(folder)

    def load(self, state: State, folder: Path) -> None:
        dcp.load(state, checkpoint_id=folder / "dcp", no_dist=True)


class DcpAsync(Dcp):
    name = "DCP async_save"

    def save(self, state: State, folder: Path) -> None:
        dcp.async_save(state, checkpoint_id=folder / "dcp", no_dist=True).result()
        sync(folder)


class TorchCheckpointing:
    name = "torch_checkpointing"

    def __init__(self) -> None:
        from torch_checkpointing import CheckpointManager
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        config = CheckpointManager.Config.with_sync_save()
        # Its O_DIRECT writes fail if the size of a tensor is not a multiple of the block size.
        config.storage_config = LocalFileSystemStorageConfig(use_direct_io=False)
        self.manager = config.build()

    def save(self, state: State, folder: Path) -> None:
        self.manager.save(str(folder / "tc"), {"model": state})
        sync(folder)

    def load(self, state: State, folder: Path) -> None:
        self.manager.load(str(folder / "tc"), into={"model": state})


def fill(state: State, loaded: State) -> None:
    for name, tensor in state.items():
        tensor.copy_(loaded[name])


def rivals(size: int) -> list:
    """Everything that is installed here: raw first, Holdfast second, then the rivals."""
    found = [Raw(size), Holdfast(), TorchSave(), TorchSaveMapped(), Safetensors(), Dcp()]
    # async_save needs a process group even if it does not use one, so it may be left out.
    for kind in (DcpAsync, TorchCheckpointing):
        try:
            found.append(kind())
        except ImportError as error:
            print(f"  {kind.name}: left out, {error}")
    return found


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        elements = options.bytes // TENSORS // 4
        self.state = {f"layers.{i}": torch.randn(elements) for i in range(TENSORS)}
        self.bytes = TENSORS * elements * 4
        self.folder = folder
        self.rivals = rivals(options.bytes)
        self.writes = {rival.name: [] for rival in self.rivals}
        self.loads = {rival.name: [] for rival in self.rivals}

    def round(self) -> None:
        for rival in list(self.rivals):
            try:
                self.measure(rival)
            except Exception as error:  # noqa: BLE001: a rival may fail in any way
                if isinstance(rival, (Raw, Holdfast)):
                    raise
                print(f"  {rival.name}: left out, {type(error).__name__}: {error}")
                self.rivals.remove(rival)

    def measure(self, rival) -> None:
        folder = self.folder / type(rival).__name__
        folder.mkdir(exist_ok=True)
        os.sync()
        write = self.timed(lambda: rival.save(self.state, folder))
        os.sync()
        forget(folder)
        load = self.timed(lambda: rival.load(self.state, folder))
        self.writes[rival.name].append(write)
        self.loads[rival.name].append(load)
        if hasattr(rival, "clear"):
            rival.clear(folder)
        else:
            shutil.rmtree(folder)

    def timed(self, work: Callable[[], None]) -> float:
        start = time.perf_counter()
        work()
        return self.bytes / (time.perf_counter() - start) / 1e9

    def check(self) -> None:
        """Checks that Holdfast restores what it saved, bit for bit."""
        saver = self.rivals[1]
        folder = self.folder / "Holdfast"
        before = {name: tensor.clone() for name, tensor in self.state.items()}
        saver.save(self.state, folder)
        for tensor in self.state.values():
            tensor.zero_()
        saver.load(self.state, folder)
        for name, tensor in self.state.items():
            assert torch.equal(tensor, before[name]), name


def report(bench: Bench) -> tuple[dict, bool]:
    writes = {r.name: statistics.median(bench.writes[r.name]) for r in bench.rivals}
    loads = {r.name: statistics.median(bench.loads[r.name]) for r in bench.rivals}
    raw, own, *others = (rival.name for rival in bench.rivals)
    print(f"{'':26} {'durable':>8} {'of raw':>7} {'cold load':>10} {'of raw':>7}   GB/s")
    for name in writes:
        print(
            f"  {name:24} {writes[name]:8.2f} {writes[name] / writes[raw]:7.2f}"
            f" {loads[name]:10.2f} {loads[name] / loads[raw]:7.2f}"
        )
    ratios = {
        "write": writes[own] / max(writes[name] for name in others),
        "load": loads[own] / max(loads[name] for name in others),
    }
    good = True
    for what, bar in (("write", 1.5), ("load", 1.0)):
        passed = ratios[what] >= bar
        good &= passed
        print(
            f"  {what}: {ratios[what]:.2f} times the best rival; expected at least {bar}"
            f"  {'PASS' if passed else 'FAIL'}"
        )
    return {"write": writes, "load": loads, "of_best_rival": ratios}, good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=2 << 30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("."))
    parser.add_argument("--json", type=Path)
    options, _ = parser.parse_known_args()  # ignores the options of other benchmarks
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="rivals-") as folder:
        bench = Bench(options, Path(folder))
        print(f"{bench.bytes >> 20} MiB in {TENSORS} tensors, {options.rounds} rounds")
        for _ in range(options.rounds):
            bench.round()
        bench.check()
        figures, good = report(bench)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
