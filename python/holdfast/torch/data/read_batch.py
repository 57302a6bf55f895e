"""Reads one batch, in a worker or in the training process itself.

torch seeds a worker once. So what its dataset draws depends on everything that this worker read
before, and a restart cannot repeat it. Here each batch has its own seeds: what is drawn for it
depends on nothing else, in whichever process it is read.
"""

import contextlib
import dataclasses
import functools
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from holdfast.torch.data.worker_draws import WorkerDraws

_LOW64 = (1 << 64) - 1


class ReadTask(NamedTuple):
    """The samples to read, and their seeds: one per sample, one for all, or None."""

    indices: Any
    seeds: list[int] | int | None


def mix_seeds(a: int, b: int) -> int:
    """A seed made of two numbers: if one of them changes, all of its 64 bits may change."""
    z = (a * 0x9E3779B97F4A7C15 + b + 0x9E3779B97F4A7C15) & _LOW64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _LOW64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _LOW64
    return z ^ (z >> 31)


def seed_all(seed: int) -> None:
    """Seeds the generators of this process that datasets draw from, but not those of GPUs."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed & 0xFFFFFFFF)


@functools.cache
def _spare_numpy_generator() -> Any:
    return sys.modules["numpy"].random.MT19937(0)


@contextlib.contextmanager
def keep_generators() -> Iterator[None]:
    """Restores the generators of the process at the end: the training itself draws from them."""
    numpy = sys.modules.get("numpy")
    torch_state, python_state = torch.default_generator.get_state(), random.getstate()
    if numpy:  # copying its state takes long, so another generator is used meanwhile
        own = numpy.random.get_bit_generator()
        numpy.random.set_bit_generator(_spare_numpy_generator())
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_state)
        random.setstate(python_state)
        if numpy:
            numpy.random.set_bit_generator(own)


class BatchReader(Dataset):
    """A dataset whose items are finished batches, and whose index is a ReadTask."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], batched: bool = True) -> None:
        self.dataset = dataset
        self._collate = collate
        self._batched = batched
        self.draws: WorkerDraws | None = None  # set if workers read

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """What makes a batch of samples."""
        return self._collate

    def __getitem__(self, task: ReadTask) -> Any:
        if self.draws is not None and get_worker_info() is not None:
            with self.draws.watching(self.dataset, self._collate):
                return self._collate(self._read(task))
        if task.seeds is None or get_worker_info() is not None:
            return self._collate(self._read(task))
        with keep_generators():
            return self._collate(self._read(task))

    def _read(self, task: ReadTask) -> Any:
        if isinstance(task.seeds, int):
            seed_all(task.seeds)
        if not self._batched:
            return self.dataset[task.indices]
        if getattr(self.dataset, "__getitems__", None):
            if isinstance(task.seeds, list):
                seed_all(task.seeds[0])
            return self.dataset.__getitems__(task.indices)
        if isinstance(task.seeds, list):
            return [self._sample(*pair) for pair in zip(task.indices, task.seeds, strict=True)]
        return [self.dataset[index] for index in task.indices]

    def _sample(self, index: int, seed: int) -> Any:
        seed_all(seed)
        return self.dataset[index]


class InitWorker:
    """Runs the user's `worker_init_fn` in a worker whose info shows the user's dataset."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        torch_worker._worker_info = dataclasses.replace(info, dataset=info.dataset.dataset)
        if self._then is not None:
            self._then(worker)


def keep_batch(batch: Any) -> Any:
    """The collate function of a loader whose dataset returns finished batches."""
    return batch
