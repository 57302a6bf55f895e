"""A plain torch DataLoader that can be resumed: `holdfast.data.resumable`."""

import collections
import itertools
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from holdfast.torch.data.base_loader import (
    Epochs,
    Loader,
    check_epochs,
    make_torch_loader,
    rank_and_world,
    source_of,
)
from holdfast.torch.data.read_batch import BatchReader, ReadTask, mix_seeds
from holdfast.torch.data.source import Source

_OPTIONS = (
    "num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "timeout",
    "worker_init_fn", "multiprocessing_context",
)  # fmt: skip


def resumable(loader: Any, *, epochs: Epochs = "each") -> Any:
    """A loader like the given one that knows its position and can resume from it.

    It is for a torch DataLoader over a map-style dataset, with torch's samplers (random,
    sequential, subset, weighted, distributed) or others that draw from torch's generators.
    Batches come in the same order as from the plain loader. To resume in the middle of an epoch,
    the order is drawn again from the states that the generators had at the start of the epoch;
    the samples before the position are not read.

    By default, one `for` is one epoch, as with the plain loader (one that is left early counts as
    a whole epoch), and the training calls `set_epoch()` of its samplers. With `epochs=`, as in
    `holdfast.data.loader`, one `for` spans several epochs and calls `set_epoch()` itself. An epoch
    that is resumed in its middle keeps the number that its sampler had, whatever `set_epoch()`
    says in between.

    Without workers, the dataset draws from the generators of the process, which a checkpoint
    keeps. In workers, Python's, NumPy's and torch's generators are seeded for every batch from
    the base seed of the epoch, so that a restart repeats what they draw. (A plain DataLoader seeds
    them once per worker.)

    A loader with a state_dict of its own (torchdata's StatefulDataLoader) is returned as it is.
    TypeError says why a loader cannot be resumed, and what to do. A resume needs the same number
    of ranks; with `holdfast.data.loader` it does not.
    """
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return loader
    _check_plain(loader)
    check_epochs(epochs)
    return _Resumable(loader, epochs)


def _check_plain(loader: Any) -> None:
    if type(loader) is not DataLoader:
        raise TypeError(
            f"data: {type(loader).__name__} is no plain torch DataLoader and has no state_dict; "
            "expected holdfast.data.loader(dataset, ...), or a state_dict() and load_state_dict() "
            "that tell and set its position"
        )
    if isinstance(loader.dataset, IterableDataset):
        raise TypeError(
            f"data: {type(loader.dataset).__name__} is an IterableDataset, which cannot say "
            "where it is; expected a map-style dataset (__getitem__ and __len__), or torchdata's "
            "StatefulDataLoader over a dataset with state_dict() and load_state_dict()"
        )
    if not loader.in_order:
        raise TypeError("data: in_order=False gives batches in no fixed order; expected "
                        "in_order=True")


class _Epoch(Sampler[ReadTask]):
    """The rest of an epoch as tasks, with a digest of the order up to each task."""

    def __init__(self, seeded: bool) -> None:
        self._seeded = seeded
        self.base = 0  # the seeds of batches are made from it
        self.indices: Iterator[Any] = iter(())
        self.digest = 0
        self.digests: collections.deque[int] = collections.deque()

    def open(self, base: int, sampler: Iterable[Any], skipped: int) -> None:
        """Begins an epoch, after its first `skipped` batches."""
        self.base, self.indices, self.digest = base, enumerate(sampler), 0
        self.digests.clear()
        for _, indices in itertools.islice(self.indices, skipped):
            self._add(indices)

    def __iter__(self) -> Iterator[ReadTask]:
        for number, indices in self.indices:
            self._add(indices)
            self.digests.append(self.digest)
            yield ReadTask(indices, mix_seeds(self.base, number) if self._seeded else None)

    def _add(self, indices: Any) -> None:
        self.digest = zlib.crc32(repr(indices).encode(), self.digest)


class _Resumable(Loader):
    """A plain DataLoader with a position.

    The position is the epoch, the number of batches handed out, and the states of the generators
    from which the order of the epoch was drawn.
    """

    per_rank = True
    kind = "plain DataLoader"

    def __init__(self, loader: DataLoader, epochs: Epochs) -> None:
        batched = loader.batch_sampler is not None
        self._sampler: Iterable[Any] = loader.batch_sampler if batched else loader.sampler
        self._samplers = _chain(self._sampler)
        self._seeder: torch.Generator | None = loader.generator
        self._generators = _generators_of([loader, *self._samplers])
        self._worker_seeds = torch.Generator()
        self._tasks = _Epoch(seeded=loader.num_workers > 0)
        self._inner = make_torch_loader(
            BatchReader(loader.dataset, loader.collate_fn, batched), self._tasks,
            self._worker_seeds,
            **{name: getattr(loader, name) for name in _OPTIONS},
        )  # fmt: skip
        self._epochs = epochs
        self._epoch = 0
        self._batch = 0  # batches of this epoch that were handed out
        self._order = 0  # digest of their indices
        # What the order of this epoch is drawn from; empty if the epoch has not begun.
        self._start: dict[str, Any] = {}
        self._waiting = False  # the next `for` resumes in the middle of the epoch
        self._told: int | None = None  # the epoch of the last set_epoch() since a state was loaded

    @property
    def epoch(self) -> int:
        return self._epoch + (self._epochs != "each" and self._at_end())

    def __len__(self) -> int:
        if self._epochs is None:
            raise TypeError("data: a loader with epochs=None has no length; expected a number, or "
                            '"each"')
        return len(self._sampler) * (1 if self._epochs == "each" else self._epochs)

    def sources(self) -> dict[str, Source]:
        return {"": source_of(self._inner, self._sampler, self._generators)}

    def state_dict(self) -> dict[str, Any]:
        position = {"epoch": self._epoch, "batch": self._batch, "order": self._order}
        now = {"generators": [_state_of(generator) for generator in self._generators]}
        start = self._start or now
        return {**position, "world": rank_and_world(None, None)[1], **start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        world = rank_and_world(None, None)[1]
        if state["world"] != world:
            raise ValueError(
                f"data: {world} ranks, and {state['world']} saved; expected as many ranks for a "
                "plain DataLoader, or holdfast.data.loader"
            )
        if len(state["generators"]) != len(self._generators):
            raise ValueError(
                f"data: the loader has {len(self._generators)} generators; "
                f"expected {len(state['generators'])} as in the checkpoint"
            )
        self._epoch, self._batch, self._order = state["epoch"], state["batch"], state["order"]
        self._waiting = "default" in state
        kept = ("default", "generators", "epochs")
        self._start = {key: state[key] for key in kept} if self._waiting else {}
        _set_states(self._generators, state["generators"])
        if self._waiting:  # so that a set_epoch() for another epoch is noticed
            _set_epochs(self._samplers, self._start["epochs"])
        self._told = None
        self._end_iteration()

    @property
    def sampler(self) -> Any:
        """The loader itself: Lightning calls set_epoch() of a loader's `sampler`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the epoch that begins; also the samplers', if each loop is an epoch."""
        self._told = epoch
        if self._epochs == "each":
            _set_epochs(self._samplers, [epoch] * len(self._samplers))

    def _batches(self) -> Iterator[Any]:
        if self._batch > 0 and not self._waiting:  # the last `for` was left early
            self._waiting = self._epochs != "each"
            if not self._waiting:
                self._finish_epoch()
        if not self._more():
            self._restore_generators()
            return iter(())
        told = _epochs_of(self._samplers)
        batches = self._begin()
        if self._at_end():  # the resumed epoch has no batches left; the samplers go on
            _set_epochs(self._samplers, told)
        return self._counted(batches)

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        had_ended = self._at_end() and self._is_told_another_epoch()
        while True:
            for batch in batches:
                self._batch += 1
                self._order = self._tasks.digests.popleft()
                yield batch
            self._finish_epoch()
            if (self._epochs == "each" and not had_ended) or not self._more():
                return
            had_ended = False
            batches = self._begin()

    def _is_told_another_epoch(self) -> bool:
        """True if the training called set_epoch() for another epoch than the loaded one."""
        pairs = zip(self._samplers, self._start["epochs"], strict=True)
        return self._told not in (None, self._epoch) or any(
            hasattr(sampler, "set_epoch") and getattr(sampler, "epoch", None) != epoch
            for sampler, epoch in pairs
        )

    def _more(self) -> bool:
        return not isinstance(self._epochs, int) or self._epoch < self._epochs

    def _finish_epoch(self) -> None:
        self._epoch, self._batch, self._order, self._start = self._epoch + 1, 0, 0, {}

    def _at_end(self) -> bool:
        try:
            return self._batch >= max(len(self._sampler), 1)  # type: ignore[arg-type]
        except TypeError:  # the sampler, or one inside it, has no length
            return False

    def _begin(self) -> Iterator[Any]:
        """Makes the iterator of an epoch, from its start or from the middle.

        At the start of an epoch, the generators are restored first, because the order is drawn
        from them. In the middle, they are set to what they were at the start of the epoch, the
        order is drawn again, and then they are restored.
        """
        if not self._waiting:
            self._restore_generators()
            self._record_start()
            return self._open(0)
        self._waiting = False
        found = torch.default_generator.get_state()
        _set_states([torch.default_generator], [self._start["default"]])
        _set_states(self._generators, self._start["generators"])
        _set_epochs(self._samplers, self._start["epochs"])
        self._tell_epoch()
        batches = self._open(self._batch)
        torch.default_generator.set_state(found)
        self._restore_generators()
        return batches

    def _record_start(self) -> None:
        self._tell_epoch()
        self._start = {
            "default": _state_of(torch.default_generator),
            "generators": [_state_of(generator) for generator in self._generators],
            "epochs": _epochs_of(self._samplers),
        }

    def _tell_epoch(self) -> None:
        """Calls set_epoch(), unless one `for` is one epoch: then the training itself does."""
        if self._epochs != "each":
            _set_epochs(self._samplers, [self._epoch] * len(self._samplers))

    def _open(self, skipped: int) -> Iterator[Any]:
        # In torch's order: first the base seed of the workers, then what the sampler draws.
        base = int(torch.empty((), dtype=torch.int64).random_(generator=self._seeder))
        self._worker_seeds.manual_seed(base)
        self._tasks.open(base, self._sampler, skipped)
        if self._tasks.digest != self._order:
            raise ValueError(
                f"data: {type(self._samplers[-1]).__name__} gives another order than before the "
                "checkpoint; expected the same dataset and a sampler whose order comes "
                "from torch's generators"
            )
        return iter(self._inner)


def _chain(sampler: Any) -> list[Any]:
    """The sampler, the sampler inside it, and so on."""
    chain = [sampler]
    while (inner := getattr(chain[-1], "sampler", None)) is not None and inner not in chain:
        chain.append(inner)
    return chain


def _generators_of(owners: list[Any]) -> list[torch.Generator]:
    """The generators that the loader owns. A Checkpointer saves those of the process."""
    found: list[torch.Generator] = []
    for owner in owners:
        generator = getattr(owner, "generator", None)
        own = isinstance(generator, torch.Generator) and generator is not torch.default_generator
        if own and not any(generator is other for other in found):
            found.append(generator)
    return found


def _state_of(generator: torch.Generator) -> bytes:
    return bytes(generator.get_state().tolist())


def _set_states(generators: list[torch.Generator], states: list[bytes]) -> None:
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(torch.tensor(list(state), dtype=torch.uint8))


def _epochs_of(samplers: list[Any]) -> list[int | None]:
    return [getattr(sampler, "epoch", None) for sampler in samplers]


def _set_epochs(samplers: list[Any], epochs: list[int | None]) -> None:
    for sampler, epoch in zip(samplers, epochs, strict=True):
        if epoch is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
