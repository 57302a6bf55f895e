"""What all of Holdfast's loaders are: an iterable that owns the position of the training.

With workers a sampler runs ahead of what was trained, so a loader counts the batches that it
handed out, and that count is what a checkpoint needs.
"""

import abc
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler

from holdfast.torch.data.read_batch import Fetch, InitWorker, Task, as_read

Epochs = int | None | Literal["each"]


def world_of(rank: int | None, world: int | None) -> tuple[int, int]:
    """(rank, world) as given, else those of torch.distributed, else (0, 1)."""
    if (rank is None) != (world is None):
        raise ValueError(f"rank={rank}, world={world}: want both or neither")
    if rank is not None and world is not None:
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} of {world}, want one of them")
        return rank, world
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def check_epochs(epochs: Epochs) -> None:
    """Raises ValueError unless it is a number, None or "each"."""
    good = epochs is None or epochs == "each" or (isinstance(epochs, int) and epochs >= 0)
    if not good:
        raise ValueError(f'epochs={epochs!r}: want a number, None or "each"')


class Loader(abc.ABC):
    """Iterates over batches and knows how many it handed out.

    One `for` goes on from the position to the end of epoch `epochs` of the run (a number),
    for ever (None), or to the end of the epoch (`"each"`, as with torch's DataLoader).
    Inside the loop `state_dict()` counts the batch in hand as done. After
    `load_state_dict()` the next `for` begins with the batch that would have followed. With
    `"each"` an epoch ends when its `for` ends: if the batch in hand was the last one, the next
    `for` after `load_state_dict()` has no batches, and what the training does behind its loop
    (a scheduler's step, a validation) is done for that epoch. One iteration at a time: a newer
    one ends the older. Not thread safe.

    `after_iter`, if set, is called once by the next iteration: when whatever its beginning
    draws from torch's generators is drawn, and before the first batch is read. A checkpoint
    restores the generators there.

    `per_rank` says whether ranks have states of their own, or all the same.
    """

    per_rank: bool
    after_iter: Callable[[], None] | None = None
    _newest: object = None

    @property
    @abc.abstractmethod
    def epoch(self) -> int:
        """The epoch of the next batch; with "each", of the `for` that has not ended yet."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The position, as plain values."""

    @abc.abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes a position over; the next `for` begins there."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many batches a whole `for` has: of all epochs, or of one with "each"."""

    @abc.abstractmethod
    def _batches(self) -> Iterator[Any]:
        """Iterates from the position; the beginning is done before this returns."""

    def __iter__(self) -> Iterator[Any]:
        token = self._newest = object()
        return self._guarded(self._batches(), token)

    def _guarded(self, batches: Iterator[Any], token: object) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if token is not self._newest:
                raise RuntimeError("this loader is iterated anew: the older loop cannot go on")

    def _restore_generators(self) -> None:
        callback, self.after_iter = self.after_iter, None
        if callback is not None:
            callback()


def inner_loader(
    fetch: Fetch, tasks: Sampler[Task], generator: torch.Generator, **options: Any
) -> DataLoader:
    """A torch DataLoader that carries out tasks.

    It draws the seeds of its workers from `generator`, so nothing from torch's own. `tasks`
    must not hold the Loader: in a cycle of references workers would outlive their use.
    """
    init = InitWorker(options.pop("worker_init_fn", None))
    return DataLoader(
        fetch,
        batch_size=None,
        sampler=tasks,
        collate_fn=as_read,
        generator=generator,
        worker_init_fn=init,
        **options,
    )
