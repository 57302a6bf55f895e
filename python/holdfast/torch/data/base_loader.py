"""The base class of Holdfast's loaders: an iterable that knows the position of the training.

With workers, a sampler runs ahead of what was trained. So a loader counts the batches that it
handed out, and a checkpoint saves that count.
"""

import abc
import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler

from holdfast.torch.data.read_batch import BatchReader, InitWorker, ReadTask, keep_batch
from holdfast.torch.data.source import Source
from holdfast.torch.data.worker_draws import WorkerDraws
from holdfast.torch.values import generators

_MOVED = object()  # in the place of an iteration: load_state_dict() has set another position

Epochs = int | None | Literal["each"]


def rank_and_world(rank: int | None, world: int | None) -> tuple[int, int]:
    """(rank, world) as given, else those of torch.distributed, else (0, 1)."""
    if (rank is None) != (world is None):
        raise ValueError(f"rank={rank}, world={world}; expected both or neither")
    if rank is not None and world is not None:
        if not 0 <= rank < world:
            raise ValueError(f"rank={rank}, world={world}; expected 0 <= rank < world")
        return rank, world
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def check_epochs(epochs: Epochs) -> None:
    """Raises ValueError unless it is a number, None or "each"."""
    good = epochs is None or epochs == "each" or (isinstance(epochs, int) and epochs >= 0)
    if not good:
        raise ValueError(f'epochs={epochs!r}; expected a number, None or "each"')


class Loader(abc.ABC):
    """Iterates over batches and knows how many it handed out.

    One `for` goes from the position to the end of epoch `epochs` of the run (a number), on for
    ever (None), or to the end of the epoch (`"each"`, as with torch's DataLoader). Inside the
    loop, `state_dict()` counts the current batch as done. After `load_state_dict()`, the next
    `for` begins with the batch that would have followed. With `"each"`, an epoch ends when its
    `for` ends. So if the current batch was the last one, the next `for` after `load_state_dict()`
    has no batches, and the training does what stands behind its loop (a scheduler's step, a
    validation) for that epoch. There is one iteration at a time: a newer one ends the older, and
    so does `load_state_dict()`, as it does not move an iteration that has begun. Not thread safe.

    `after_iter`, if set, is called once by the next iteration, after all that its beginning draws
    from torch's generators is drawn, and before the first batch is read. A checkpoint restores
    the generators there.

    `per_rank` says whether each rank has a state of its own, or all ranks the same. `kind` is what
    users call such a loader. A loader of another kind refuses the state.
    """

    per_rank: bool
    kind = "holdfast.data.Loader"
    after_iter: Callable[[], None] | None = None
    handed_out = 0  # batches, over all iterations
    # Generators beside those of the process, which batches that are handed out again need as well.
    generators: Mapping[str, Any] = {}
    _newest: object = None
    _kept: list[tuple[Any, Any]] | None = None  # batches handed out, and the generators then
    _on_batch: Callable[[Any], None] | None = None
    _again: collections.deque[tuple[Any, Any]] | None = None  # to be handed out before others

    @property
    @abc.abstractmethod
    def epoch(self) -> int:
        """The epoch of the next batch; with "each", that of a `for` that has not ended yet."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The position, as plain values."""

    @abc.abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets the position; the next `for` begins there."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many batches a whole `for` has: those of all epochs, or of one with "each"."""

    @abc.abstractmethod
    def sources(self) -> dict[str, Source]:
        """What the loader reads with; a loader of several loaders has one for each, by name."""

    @abc.abstractmethod
    def _batches(self) -> Iterator[Any]:
        """An iterator from the position. It has begun when this returns."""

    def __iter__(self) -> Iterator[Any]:
        token = self._newest = object()
        return self._guarded(self._batches(), token)

    def _guarded(self, batches: Iterator[Any], token: object) -> Iterator[Any]:
        again: collections.deque[tuple[Any, Any]] = collections.deque()
        self._again = again
        while True:
            if self._newest is _MOVED:
                raise RuntimeError("data: resume() has moved the loader; expected a new `for` over "
                                   "it")
            if again:
                batch, state = again.popleft()
                generators.restore(state, self.generators)  # as if the batch had been read again
            else:
                try:
                    batch = next(batches)
                except StopIteration:
                    self._again = None
                    return
            self._note(batch)
            yield batch
            if self._newest not in (token, _MOVED):
                raise RuntimeError("data: the loader is iterated by a newer loop; expected one "
                                   "loop at a time")

    def _end_iteration(self) -> None:
        """Ends the iteration that runs: the position is another one now."""
        self._newest = _MOVED

    # For steps that may have to be made again

    def keep_batches(self, on_batch: Callable[[Any], None]) -> None:
        """Keeps the batches that are handed out from now on, and calls on_batch with each."""
        self._kept, self._on_batch = [], on_batch

    def forget_batches(self) -> None:
        """Ends what keep_batches() began."""
        self._kept = self._on_batch = None

    def hand_out_again(self) -> bool:
        """The next batches are those that were handed out since keep_batches().

        False if that is not possible, because the iteration has ended since then.
        """
        kept = self._kept
        self.forget_batches()
        if kept and self._again is not None:
            self._again.extendleft(reversed(kept))
        return not kept or self._again is not None

    def _note(self, batch: Any) -> None:
        self.handed_out += 1
        if self._kept is not None and self._on_batch is not None:
            self._kept.append((batch, generators.capture(self.generators)))
            self._on_batch(batch)

    def _restore_generators(self) -> None:
        callback, self.after_iter = self.after_iter, None
        if callback is not None:
            callback()


def source_of(inner: DataLoader, sampler: Any = None, replayed: Sequence[Any] = ()) -> Source:
    """The source of a loader that make_torch_loader() made."""
    fetch: Any = inner.dataset
    return Source(fetch.dataset, fetch.collate_fn, sampler, inner.num_workers, replayed,
                  None if fetch.draws is None else fetch.draws.names)


def make_torch_loader(
    fetch: BatchReader, tasks: Sampler[ReadTask], generator: torch.Generator, **options: Any
) -> DataLoader:
    """A torch DataLoader that carries out tasks.

    It draws the seeds of its workers from `generator`, and nothing from torch's own. `tasks`
    must not refer to the Loader: in a cycle of references, workers would outlive their use.
    """
    init = InitWorker(options.pop("worker_init_fn", None))
    if options.get("num_workers"):
        fetch.draws = WorkerDraws()
    return DataLoader(
        fetch,
        batch_size=None,
        sampler=tasks,
        collate_fn=keep_batch,
        generator=generator,
        worker_init_fn=init,
        **options,
    )
