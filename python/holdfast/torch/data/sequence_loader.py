"""Batches in an order that any number of ranks can resume: `holdfast.data.loader`."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch.utils.data import IterableDataset, Sampler, default_collate

from holdfast._native import Sequence
from holdfast.corpus import Files
from holdfast.torch.data.base_loader import (
    Epochs,
    Loader,
    check_epochs,
    make_torch_loader,
    rank_and_world,
    source_of,
)
from holdfast.torch.data.fingerprint import check_fingerprint, fingerprint_of
from holdfast.torch.data.mixture import Mixed, MixedOrder
from holdfast.torch.data.passes import Pass
from holdfast.torch.data.read_batch import BatchReader, ReadTask, mix_seeds
from holdfast.torch.data.source import Source
from holdfast.whole_number import whole_number


_END = object()


class BatchSampler(Sampler[list[int]]):
    """One rank's share of a Sequence, batch by batch, for a DataLoader's `batch_sampler=`.

    Its only state is (seed, cursor). The cursor does not follow an iteration, which with workers
    is ahead of the training. Call `advance()` for every batch that was trained on to move it;
    `holdfast.data.loader` does that itself.

    Whatever the number of ranks is, and whenever it changes, every position of the sequence is
    read exactly once and in the same global order. A batch with fewer samples than ranks is
    refused on all ranks, because a rank cannot train on nothing.
    """

    def __init__(
        self,
        sequence: Sequence | MixedOrder,
        *,
        rank: int | None = None,
        world: int | None = None,
        epochs: Epochs = None,
    ) -> None:
        check_epochs(epochs)
        if epochs == "each" and sequence.last == "join":
            raise ValueError('data: epochs="each" with last="join", whose batches span epochs; '
                             'expected last="short" or last="drop"')
        self.sequence = sequence
        self.rank, self.world = rank_and_world(rank, world)
        self.epochs = epochs
        self.cursor = 0
        self.told: int | None = None  # the epoch of the last set_epoch() since a state was loaded
        self._check_shares()

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self.sequence.epoch(self.sequence.step(self.cursor)[0])

    def __iter__(self) -> Iterator[list[int]]:
        for first, last in self.shares():
            yield self.sequence.indices(first, last)

    def shares(self) -> Iterator[tuple[int, int]]:
        """The positions (first, last) of this rank, batch by batch, beginning at the cursor."""
        first, last = self.sequence.step(self.cursor)
        end = self._end()
        while end is None or first < end:
            last = self._cap(last)
            yield self.sequence.share(first, last, self.rank, self.world)
            first, last = self.sequence.step(last)

    def weight(self) -> float:
        """How large the share of this rank in the next batch is, compared with an equal one."""
        first, last = self.sequence.step(self.cursor)
        last = self._cap(last)
        own = self.sequence.share(first, last, self.rank, self.world)
        return (own[1] - own[0]) * self.world / (last - first)

    def advance(self, batches: int = 1) -> None:
        """Moves the cursor over batches that were trained on."""
        for _ in range(batches):
            self.cursor = self._cap(self.sequence.step(self.cursor)[1])

    def __len__(self) -> int:
        s = self.sequence
        if self.epochs is None:
            raise TypeError("data: a loader with epochs=None has no length; expected a number, or "
                            '"each"')
        if self.epochs == "each":
            return s.batches_per_epoch
        if s.last == "join":
            return -(-self.epochs * s.samples // s.batch)
        return self.epochs * s.batches_per_epoch

    def state_dict(self) -> dict[str, Any]:
        """The seed and the cursor, and the dataset that they are for."""
        s = self.sequence
        state = {"cursor": self.cursor, "seed": s.seed, "samples": s.samples, "shuffle": s.shuffle}
        return state | s.state() if isinstance(s, MixedOrder) else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets seed and cursor; batch size, `last` and ranks stay those of this sampler.

        Raises ValueError if the dataset has another length, or is no longer shuffled.
        """
        self.check_state(state)
        s = self.sequence
        self.sequence = s.resumed(state) if isinstance(s, MixedOrder) else Sequence(
            s.samples, s.batch, seed=state["seed"], shuffle=s.shuffle, last=s.last
        )
        self.cursor = state["cursor"]
        self.told = None
        self._check_shares()

    def check_state(self, state: dict[str, Any]) -> None:
        """ValueError if the state is of a dataset of another length, or is not shuffled alike."""
        s = self.sequence
        for name in ("cursor", "seed", "samples", "shuffle"):
            if not isinstance(state, Mapping) or name not in state:
                raise ValueError(f"data: the state has no {name}; expected one of holdfast.data.loader")
        whole_number("data: cursor", state["cursor"])
        whole_number("data: seed", state["seed"], limit=1 << 64)
        for name, ours in (("samples", s.samples), ("shuffle", s.shuffle)):
            if state[name] != ours:
                raise ValueError(f"data: {name} is {ours}; expected {state[name]}, as in the "
                                 "checkpoint")

    def set_epoch(self, epoch: int) -> None:
        """Called by trainers to say which epoch begins. The cursor itself does not move."""
        self.told = epoch

    def _end(self) -> int | None:
        if self.epochs is None:
            return None
        epochs = self.epoch + 1 if self.epochs == "each" else self.epochs
        return epochs * self.sequence.samples

    def _cap(self, last: int) -> int:
        if not isinstance(self.epochs, int):
            return last
        # With "join", a batch may reach beyond the end.
        return min(last, self.epochs * self.sequence.samples)

    def _check_shares(self) -> None:
        if why := self.why_not(self.world):
            raise ValueError(why)

    def why_not(self, world: int) -> str:
        """Why so many ranks cannot share the batches; "" if they can."""
        s = self.sequence
        sizes = [s.batch]
        if s.last == "short":
            sizes += [s.samples % s.batch, (s.samples - self.cursor % s.samples) % s.batch]
        elif s.last == "join" and isinstance(self.epochs, int):
            sizes += [(self.epochs * s.samples - self.cursor) % s.batch]
        least = min(size for size in sizes if size > 0)
        if least >= world:
            return ""
        return (f"data: a batch of {least} for {world} ranks leaves some without a sample; "
                'expected a larger batch, last="drop" or last="join"')


class _SequenceTasks(Sampler[ReadTask]):
    def __init__(self, sampler: BatchSampler, seeded: bool) -> None:
        self._sampler = sampler
        self._seeded = seeded

    def __iter__(self) -> Iterator[ReadTask]:
        sequence = self._sampler.sequence
        for first, last in self._sampler.shares():
            seeds = None
            if self._seeded:
                seeds = [mix_seeds(sequence.seed, at) for at in range(first, last)]
            yield ReadTask(sequence.indices(first, last), seeds)


class _SequenceLoader(Loader):
    """A Loader over a BatchSampler. All ranks have the same state."""

    per_rank = False
    kind = "holdfast.data.loader"

    def __init__(
        self, fetch: BatchReader, sampler: BatchSampler, seeded: bool, fingerprint: str,
        **options: Any
    ) -> None:
        self.sampler = sampler
        self._fingerprint = fingerprint
        self._uncounted = 0  # with "each": epochs that were only read to validate
        tasks = _SequenceTasks(sampler, seeded)
        self._worker_seeds = torch.Generator()
        self._inner = make_torch_loader(fetch, tasks, self._worker_seeds, **options)
        self._open: int | None = None  # with "each": the epoch of a `for` that has not ended yet
        self.weight = 1.0
        self._follows = False  # the ranks are those of a job that may change its configuration
        self._is_recut = False  # they are others now, and the running `for` has to follow
        self._newest: tuple[int, Any] = (0, None)  # a batch that was handed out, and where it begins
        self._loaded = False  # a state was loaded, and no `for` has begun since

    @property
    def epoch(self) -> int:
        return (self.sampler.epoch if self._open is None else self._open) - self._uncounted

    def sources(self) -> dict[str, Source]:
        return {"": source_of(self._inner)}

    def state_dict(self) -> dict[str, Any]:
        return {**self.sampler.state_dict(), "open": self._open, "uncounted": self._uncounted,
                "fingerprint": self._fingerprint}

    def follow_job(self, job: Any) -> None:
        """Reads the share of this process in that job, whatever its configuration is."""
        self._follows = True
        self.follow_ranks(*job.follow(self))
        self._is_recut = False

    def follow_ranks(self, rank: int, world: int) -> None:
        """The replica that this process is part of has another number."""
        self.sampler.rank, self.sampler.world = rank, world
        self._is_recut = True

    def take_back(self) -> list[Any]:
        """Takes back the batches that were handed out since the last ck.step(), and returns them.

        ValueError unless that is one batch at most. The running `for` reads its samples again as soon
        as it follows other ranks: read_again() then has the share of this rank now.
        """
        if self._since_step == 0:
            return []
        if self._since_step > 1 or self._pass is None or self._pass.iterator() is None:
            raise ValueError(f"{self._since_step} batches were read for a step, and are now for other ranks; "
                             "expected one batch for each step")
        self.sampler.cursor, batch = self._newest
        self._is_recut = True
        self.handed_out, self._since_step = self.handed_out - 1, 0
        self._pass.handed_out, self._pass.unused = self._pass.handed_out - 1, self._pass.unused - 1
        if self._again:  # the step itself reads it, and will do so again
            self._again.clear()
            return []
        return [batch]

    def read_again(self) -> Any:
        """The next batch of the running `for`, which does not get it."""
        assert self._pass is not None
        return next(self._pass.iterator())

    def why_not(self, world: int) -> str:
        """Why so many replicas cannot share the batches; "" if they can."""
        return self.sampler.why_not(world)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.check_state(state)
        check_fingerprint(state, self._fingerprint,
                          f"holdfast.data.loader(..., fingerprint={state.get('fingerprint')!r})")
        if self._follows and self._is_recut and state["cursor"] == self.sampler.cursor:
            return  # the job has changed its configuration here: the running `for` goes on
        self._is_recut = False
        self.sampler.load_state_dict(state)
        self._uncounted = state.get("uncounted", 0)
        self._end_iteration()
        self._open = state.get("open") if self.sampler.epochs == "each" else None
        self._loaded = True

    def __len__(self) -> int:
        return len(self.sampler)

    def _count_epoch(self) -> None:
        self._uncounted -= 1

    def _batches(self, one: Pass) -> Iterator[Any]:
        is_over = self._loaded and self._open is not None and self._open < self.sampler.epoch
        self._loaded = False
        if is_over:  # the last batch of the open epoch was read before the restart
            self._restore_generators()
            return self._ended(one)
        return self._counted(one, self._begin())

    def _begin(self) -> Iterator[Any]:
        if self.sampler.epochs == "each":
            self._open = self.sampler.epoch
        self._worker_seeds.manual_seed(mix_seeds(self.sampler.sequence.seed, self.sampler.cursor))
        batches = iter(self._inner)
        self._restore_generators()
        return batches

    def _ended(self, one: Pass) -> Iterator[Any]:
        """Gives no batch, unless the training said by set_epoch() that another epoch begins."""
        if self.sampler.told not in (None, self.epoch):
            yield from self._counted(one, self._begin())
        self._open = None

    def _counted(self, one: Pass, batches: Iterator[Any]) -> Iterator[Any]:
        first = self.sampler.cursor
        while (batch := next(batches, _END)) is not _END:
            self.weight = self.sampler.weight()
            self._newest = self.sampler.cursor, batch if self._follows else None
            self.sampler.advance()
            yield batch
            if self._is_recut:  # what was read ahead is for other ranks
                self._is_recut = False
                batches = self._begin()
        self._open = None
        is_whole = self.sampler.epochs == "each" and first % self.sampler.sequence.samples == 0
        one.is_uncounted = is_whole and not one.is_trained
        self._uncounted += one.is_uncounted


def loader(
    dataset: Any,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    last: Literal["short", "drop", "join"] = "short",
    epochs: Epochs = None,
    rank: int | None = None,
    world: int | None = None,
    seeded: bool | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    fingerprint: str | None = None,
    elastic: Any = None,
    **options: Any,
) -> Loader:
    """Batches of a map-style dataset, exactly once and in one order, whatever happens.

        loader = holdfast.data.loader(dataset, batch_size=256, seed=0, num_workers=4)
        ck = holdfast.Checkpointer("runs/gpt", model=model, optimizer=opt, data=loader)
        start = ck.resume()
        for step, batch in zip(range(start, 1000), loader):
            ...

    `batch_size` is that of all ranks together: a run that is restarted on another number of
    ranks goes on in the middle of an epoch with the same batches, cut differently. The state is a
    seed and a cursor, the same on all ranks. If you change the batch size, the new one counts
    from the restart on.

    epochs      None: one `for` goes through epoch after epoch and never ends. A number: one `for`
                goes to the end of that epoch of the run; a restarted run does what is left, and a
                finished run does nothing. "each": one `for` is one epoch, for loops such as
                `for epoch in range(loader.epoch, 10)`. After a save at the last batch of an
                epoch, `loader.epoch` is still that epoch, and its `for` has no batches. So what
                stands behind the `for` in such a loop is done once for every epoch.
    last        what becomes of the last batch if the epoch has too few samples left for it:
                "short" keeps it short, "drop" leaves it out, "join" fills it up from the next
                epoch.
    rank, world number of this data-parallel rank, and how many there are; those of
                torch.distributed if not given.
    seeded      True: Python's, NumPy's and torch's generators are seeded for every sample by its
                position, so that augmentation is repeated whatever the workers, ranks and
                restarts are (some 20 us per sample). A dataset that reads many samples at once
                (`__getitems__`) is seeded once per batch. Generators that the dataset itself owns
                are not seeded. False: for datasets that draw nothing. By default True, and False
                for Files and mixtures of them.
    fingerprint a text that names the dataset. A state of a dataset with another one is refused. By
                default it is made of the dataset's class, its length, and parts of the arrays and
                lists of paths that it holds; a dataset of Hugging Face has its own.
    elastic     a holdfast.Elastic: the loader follows its configuration, in place of `rank` and
                `world`. `loader.weight` is the factor for the loss of a replica whose share of the batch
                is not as large as that of others.
    options     those of torch's DataLoader: num_workers, prefetch_factor, persistent_workers,
                pin_memory, timeout, worker_init_fn, multiprocessing_context.
    """
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise TypeError(f"data: {type(dataset).__name__} is a stream or has no len(); expected "
                        "samples by number, or torchdata's StatefulDataLoader")
    batch_size = whole_number("batch_size", batch_size, least=1)
    seed = whole_number("seed", seed, limit=1 << 64)
    if elastic is not None:
        if rank is not None or world is not None:
            raise ValueError("data: elastic= with rank= or world=; expected one of the two")
        rank, world = 0, 1  # until it follows the job
    if isinstance(dataset, Mixed) and epochs is not None:
        raise ValueError(f"data: epochs={epochs!r} of a mixture, whose sources have epochs of their own; "
                         "expected epochs=None")
    sequence = (dataset.order(batch_size, seed, shuffle) if isinstance(dataset, Mixed) else
                Sequence(len(dataset), batch_size, seed=seed, shuffle=shuffle, last=last))
    sampler = BatchSampler(sequence, rank=rank, world=world, epochs=epochs)
    fetch = BatchReader(dataset, collate_fn or default_collate)
    if seeded is None:
        seeded = dataset.draws if isinstance(dataset, Mixed) else not isinstance(dataset, Files)
    made = _SequenceLoader(fetch, sampler, seeded, fingerprint or fingerprint_of(dataset), **options)
    if elastic is not None:
        made.follow_job(elastic)
    return made
