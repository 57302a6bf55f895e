"""The base class of Holdfast's loaders: an iterable that knows the position of the training.

With workers, a sampler runs ahead of what was trained. So a loader counts the batches that it
handed out, and a checkpoint saves that count.
"""

import abc
import collections
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler

from holdfast.torch.data.passes import Kept, Pass, PassIterator
from holdfast.torch.data.early_reads import EarlyReads
from holdfast.torch.data.left_epoch import LeftEpoch
from holdfast.torch.data.read_batch import BatchReader, InitWorker, ReadTask, keep_batch
from holdfast.torch.data.source import Source
from holdfast.torch.data.worker_draws import WorkerDraws
from holdfast.torch.values import generators

_log = logging.getLogger("holdfast")

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
    validation) for that epoch. A newer iteration ends the older, unless the newer one only
    validates (passes.py) and the loader can keep two positions; `load_state_dict()` ends it, too,
    as it does not move an iteration that has begun. Not thread safe.

    `after_iter`, if set, is called once by the next iteration, after all that its beginning draws
    from torch's generators is drawn, and before the first batch is read. A checkpoint restores
    the generators there.

    `per_rank` says whether each rank has a state of its own, or all ranks the same. `kind` is what
    users call such a loader. A loader of another kind refuses the state.
    """

    per_rank: bool
    kind = "holdfast.data.Loader"
    after_iter: Callable[[], None] | None = None
    # Functions that are called when a pass begins, and when a batch is asked for.
    listeners: tuple[tuple[Callable[[], Any], Callable[[], Any]], ...] = ()
    handed_out = 0  # batches, over all iterations
    has_partners = False  # the training reads other loaders, too
    # Generators beside those of the process, which batches that are handed out again need as well.
    generators: Mapping[str, Any] = {}
    left_epoch: LeftEpoch | None = None  # where it is kept that an epoch was left early
    _pass: Pass | None = None  # the newest that counts; None if load_state_dict() has ended it
    _kept: list[tuple[Any, Any]] | None = None  # batches handed out, and the generators then
    _on_batch: Callable[[Any], None] | None = None
    _again: Kept | None = None  # to be handed out before others
    _is_followed = False  # a Checkpointer tells which passes train
    _has_updated = False  # an update has used a batch since the last step
    _has_stepped = False  # ck.step() was called
    _since_step = 0  # batches since the last step
    _warned: frozenset[str] = frozenset()

    @functools.cached_property
    def _early_reads(self) -> EarlyReads:
        return EarlyReads()

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
    def _batches(self, one: Pass) -> Iterator[Any]:
        """An iterator from the position. It has begun when this returns."""

    def __iter__(self) -> Iterator[Any]:
        for begin, _ in self.listeners:
            begin()
        self._settle()
        one = Pass(is_trained=not self._is_followed)
        callback = self._interrupt(one)
        batches = self._batches(one)
        self.after_iter = callback or self.after_iter
        self._pass, self._again = one, collections.deque()
        return PassIterator(self, one, batches, self._again)

    # Which pass trains

    def follow(self) -> None:
        """From now on, note_update() and note_step() say which passes train."""
        self._is_followed = True

    def note_update(self) -> None:
        """Notes that an optimizer has made an update: with the batches handed out before it."""
        self._has_updated = True
        if self._pass is not None and (self._pass.unused or not self._pass.is_trained):
            self._credit()

    def note_step(self) -> int:
        """Notes a call of ck.step(). Returns how many batches were handed out since the last."""
        if not self._has_updated:
            self._credit()
        self._settle()
        self._has_stepped = True
        if self._is_followed and self._pass is not None and (text := self._early_reads.note(self._pass)):
            self._warn_once(text)
        self._has_updated, batches, self._since_step = False, self._since_step, 0
        return batches

    def note_save(self) -> None:
        """Notes that the training asks for a save. It may never call ck.step()."""
        if not (self._has_updated or self._has_stepped):
            self._credit()

    def note_end(self) -> None:
        """Notes that what is saved next is the last step, whatever was read since then."""

    def _credit(self) -> None:
        """Notes that the training learns from the newest pass, or from the one that it interrupts."""
        one = self._pass
        outer = None if one is None else one.interrupted
        if one is not None and not one.is_open and outer is not None and (
                outer.unused or outer.is_kept):
            self._settle()
            one = outer
        if one is None or not one.unused:
            return
        one.unused, one.is_trained, one.interrupted = 0, True, None
        self._note_trained()
        if one.is_uncounted:
            one.is_uncounted = False
            self._count_epoch()

    def _settle(self) -> None:
        """A pass that has ended and trained nothing gives way to the one that it interrupted."""
        while (one := self._pass) is not None and not (one.is_open or one.is_trained):
            if one.interrupted is None:
                return
            self._pass = one.interrupted
            self._set_position(one.interrupted.position)

    def _settle_if_used(self) -> None:
        """The same, if the training uses the pass that was interrupted."""
        outer = None if self._pass is None else self._pass.interrupted
        if outer is not None and (outer.unused or outer.is_trained):
            self._settle()

    def _interrupt(self, one: Pass) -> Callable[[], None] | None:
        """Keeps the position, if this pass begins inside another or beside one that is to be resumed.

        Returns what is to be called when the position is resumed.
        """
        before = self._pass
        if before is not None and (before.is_open or before.is_kept) and self._is_followed:
            before.position = self._position()
            one.interrupted = before if before.position is not None else None
            before.was_interrupted = True
        elif self._is_look():
            one.interrupted = Pass(is_trained=True, is_open=False, position=self._position())
            self._begin_anew()
            callback, self.after_iter = self.after_iter, None
            return callback
        return None

    def _position(self) -> Any:
        """The position, for _set_position(); None if this loader keeps only one position."""
        return None

    def _set_position(self, position: Any) -> None:
        """Goes back to a position."""

    def _is_look(self) -> bool:
        """True if the pass that begins is not the one to be resumed."""
        return False

    def _begin_anew(self) -> None:
        """Sets the position to the beginning of an epoch."""

    def _note_trained(self) -> None:
        """Called when the training has learned from the newest pass."""

    def _count_epoch(self) -> None:
        """Counts an epoch that ended before it was known to train."""

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned |= {text}
            _log.warning("%s", text)

    # What the iterators of passes call

    def check_turn(self, one: Pass) -> None:
        """RuntimeError if the pass cannot go on, because another one has taken its place."""
        if self._pass is not one:
            self._settle()
        if self._pass is None:
            raise RuntimeError("data: resume() has moved the loader; expected a new `for` over it")
        if self._pass is not one:
            raise RuntimeError("data: the loader is iterated by a newer loop; expected one loop at "
                               "a time")

    def note_batch(self, one: Pass, batch: Any) -> None:
        """Notes that a batch is handed out."""
        self.handed_out += 1
        self._since_step += 1
        one.handed_out += 1
        one.unused += 1
        if self._kept is not None and self._on_batch is not None:
            self._kept.append((batch, generators.capture(self.generators)))
            self._on_batch(batch)

    def _end_iteration(self) -> None:
        """Ends the iteration that runs: the position is another one now."""
        self._pass = None

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
        can = not kept or (self._again is not None and self._pass is not None and self._pass.is_open)
        if kept and can:
            self._again.extendleft(reversed(kept))
        return can

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
