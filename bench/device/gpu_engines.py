"""The ways in which gpu_bench.py saves: Holdfast, a loop of copies and writes, and rivals."""

import json
import os
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from gpu_training import Job

import holdfast

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring.disk import BLOCK, sync  # noqa: E402: it is in the folder above
from measuring.rivals import Rival  # noqa: E402


class Engine:
    """Saves the state of a job. `step` is called after every step that no save follows."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.path = job, folder

    def save(self) -> None:
        raise NotImplementedError

    def step(self) -> None: ...

    def wait(self) -> None:
        """Waits until the last save is on the disk."""

    def durable_s(self) -> float | None:
        """How many seconds the last save took, if the engine knows; otherwise None."""

    def drop_older(self) -> None:
        """Removes what saves before the last one have left."""

    def close(self) -> None: ...


class Holdfast(Engine):
    def __init__(self, job: Job, folder: Path, **writing) -> None:
        super().__init__(job, folder)
        self.ck = holdfast.Checkpointer(
            folder / "run", model=job.model, optimizer=job.optimizer, every="1000000 steps",
            keep=1, writing=holdfast.Writing(**writing))
        self.ck.resume()
        self.events = folder / "run" / "events" / "rank-0000.jsonl"
        self.number = 0
        time.sleep(3)  # in a job, too, the first save comes some time after the start

    def step(self) -> None:
        self.number += 1
        self.ck.step(self.number)

    def save(self) -> None:
        self.number += 1
        self.handle = self.ck.save(self.number)

    def wait(self) -> None:
        self.ck._saves.settle()
        self.handle.durable()

    def durable_s(self) -> float:
        """Taken from the events, because the save is durable before the block of steps ends."""
        return self.last("save_durable")["seconds"]

    def last(self, name: str) -> dict:
        lines = self.events.read_text().splitlines()
        return next(event for event in map(json.loads, reversed(lines)) if event["event"] == name)

    def times(self) -> dict:
        """How many seconds each phase of the last save took."""
        written = self.last("save_written")
        return {"captured": self.last("save_captured")["seconds"]} | {
            part: written[part] for part in ("stage", "digest", "disk", "sync", "seconds")}

    def close(self) -> None:
        self.ck.close()


class CopyAndWrite(Engine):
    """The least work that such a save can be: no digests, no commit, no names of tensors.

    The state is copied inside the GPU in training's CUDA stream. A thread then writes the copy to
    the disk, through 8 blocks of pinned memory and a CUDA stream of its own.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        super().__init__(job, folder / "plain")
        self.tensors = job.tensors()
        sizes = [tensor.numel() * tensor.element_size() for tensor in self.tensors]
        starts = [sum((size + 63) // 64 * 64 for size in sizes[:at]) for at in range(len(sizes))]
        total = (starts[-1] + sizes[-1] + BLOCK - 1) // BLOCK * BLOCK
        self.memory = torch.empty(total, dtype=torch.uint8, device="cuda")
        self.copies = [
            self.memory[start : start + size].view(tensor.dtype).view(tensor.shape)
            for tensor, start, size in zip(self.tensors, starts, sizes, strict=True)]
        self.windows = [torch.empty(BLOCK, dtype=torch.uint8, pin_memory=True) for _ in range(8)]
        self.stream = torch.cuda.Stream()
        self.thread = threading.Thread()

    def save(self) -> None:
        self.begun = time.perf_counter()
        on_gpu = [at for at, tensor in enumerate(self.tensors) if tensor.is_cuda]
        torch._foreach_copy_([self.copies[at] for at in on_gpu],
                             [self.tensors[at] for at in on_gpu])
        copied = torch.cuda.Event()
        copied.record()
        self.thread = threading.Thread(target=self.write, args=(copied,))
        self.thread.start()

    def write(self, copied: torch.cuda.Event) -> None:
        self.path.unlink(missing_ok=True)
        number = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o644)
        free = list(self.windows)
        guard = threading.Condition()

        def put(window: torch.Tensor, at: int) -> None:
            os.pwrite(number, memoryview(window.numpy()), at)
            with guard:
                free.append(window)
                guard.notify()

        with ThreadPoolExecutor(len(free)) as pool, torch.cuda.stream(self.stream):
            self.stream.wait_event(copied)
            for at in range(0, len(self.memory), BLOCK):
                with guard:
                    guard.wait_for(lambda: free)
                    window = free.pop()
                window.copy_(self.memory[at : at + BLOCK], non_blocking=True)
                here = torch.cuda.Event()
                here.record()
                here.synchronize()
                pool.submit(put, window, at)
        os.fdatasync(number)
        os.close(number)
        self.seconds = time.perf_counter() - self.begun

    def wait(self) -> None:
        self.thread.join()

    def durable_s(self) -> float:
        return self.seconds


class Other(Engine):
    """A rival (bench/measuring/rivals.py). What it writes is synced here."""

    def __init__(self, job: Job, folder: Path, rival: Rival) -> None:
        super().__init__(job, folder)
        self.folder, self.rival, self.number = folder, rival, 0
        job.update = rival.updating

    def save(self) -> None:
        self.number += 1
        self.path = self.folder / (str(self.number) if self.rival.wants_new_places else "state")
        self.rival.save(self.job.state(), self.path)
        if not self.rival.in_background:
            sync(self.path)

    def wait(self) -> None:
        self.rival.wait()
        if self.rival.in_background:
            sync(self.path)

    def drop_older(self) -> None:
        for place in self.folder.iterdir():
            if self.rival.wants_new_places and place != self.path:
                shutil.rmtree(place)

    def close(self) -> None:
        self.rival.close()
        del self.job.update
