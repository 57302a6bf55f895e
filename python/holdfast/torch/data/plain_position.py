"""The position in a plain torch DataLoader, and how it is resumed: what `resumable` makes."""

import collections
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from holdfast.torch.data.base_loader import (
    Epochs,
    Loader,
    make_torch_loader,
    rank_and_world,
    source_of,
)
from holdfast.torch.data.counted_loops import count_of
from holdfast.torch.data.epoch_ends import EpochEnds
from holdfast.torch.data.epoch_tasks import Cycle, EpochTasks, NewestTasks
from holdfast.torch.data.fingerprint import check_fingerprint, fingerprint_of
from holdfast.torch.data.passes import Pass, is_cycled, without_draws
from holdfast.torch.data.read_batch import BatchReader
from holdfast.torch.data.sampler_generators import (
    SamplerGenerators,
    chain,
    epochs_of,
    set_epochs,
)
from holdfast.torch.data.source import Source

# What the order of an epoch is drawn from, and whether gradients were enabled when it began.
_START = ("base", "default", "generators", "drawn", "first", "epochs", "grad")
# The attributes of a PlainPosition that belong to one pass.
_POSITION = ("_epoch", "_batch", "_order", "_start", "_waiting", "_cycle", "_told", "_per_step",
             "_steps")  # fmt: skip
_OPTIONS = (
    "num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "timeout",
    "worker_init_fn", "multiprocessing_context",
)  # fmt: skip


class PlainPosition(Loader):
    """A plain DataLoader with a position.

    The position is the epoch, the number of batches handed out, and the states of the generators
    from which the order of the epoch was drawn.
    """

    per_rank = True
    kind = "plain DataLoader"

    def __init__(self, loader: DataLoader, epochs: Epochs, fingerprint: str | None) -> None:
        batched = loader.batch_sampler is not None
        self._sampler: Iterable[Any] = loader.batch_sampler if batched else loader.sampler
        self._samplers = chain(self._sampler)
        self._seeder: torch.Generator | None = loader.generator
        self._generators = SamplerGenerators(loader, self._samplers)
        self._fingerprint = fingerprint or fingerprint_of(loader.dataset)
        self._worker_seeds = torch.Generator()
        self._tasks, self._workers = NewestTasks(), loader.num_workers
        self._keeps_workers = loader.persistent_workers
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
        self._cycle: Cycle | None = None
        self._ends = EpochEnds()
        self._left: tuple[Pass, int] | None = None  # a pass that was left, and after which batch
        self._told: int | None = None  # the epoch of the last set_epoch() since a state was loaded
        self._per_step: int | None = None  # batches of each step in this epoch; 0 if they differ
        self._steps = 0  # steps made with the batches of this pass
        self._looks_for_cycle = True  # at the end of the next pass
        self._now: dict[str, Any] | None = None  # generators to restore when the order is drawn
        self._noted: dict[str, Any] | None = None  # the position at the last step
        self._is_at_end = False  # the training is over, and its last step is to be saved

    @property
    def epoch(self) -> int:
        return self._epoch + (self._epochs != "each" and self._at_end())

    @property
    def batch(self) -> int:
        """How many batches the next `for` leaves out. A loop that asks counts from there."""
        self._ends.are_counted = True
        return self._batch if self._waiting or self._is_in_pass() else 0

    def __len__(self) -> int:
        if self._epochs is None:
            raise TypeError("data: a loader with epochs=None has no length; expected a number, or "
                            '"each"')
        return len(self._sampler) * (1 if self._epochs == "each" else self._epochs)

    def sources(self) -> dict[str, Source]:
        return {"": source_of(self._inner, self._sampler, self._generators.replayed)}

    def state_dict(self) -> dict[str, Any]:
        as_noted = self._noted is not None and (self._is_at_end or not self._since_step)
        position = self._noted if as_noted else self._describe()
        owned = self._generators.capture_owned()
        # Workers read ahead, and then the states are those of a later batch.
        is_now = not self._workers or (self._pass is not None and self._pass.was_interrupted)
        return {"world": rank_and_world(None, None)[1], "fingerprint": self._fingerprint,
                "now": owned if is_now else None, **owned, **(position or {})}

    def _describe(self) -> dict[str, Any]:
        """The position, with the states of generators only if an epoch has begun."""
        self._settle_if_used()
        one = self._pass
        if self._cycle is not None:
            read = 0 if one is None or self._waiting else (
                one.handed_out if one.is_open else (self._per_step or 0) * self._steps)
            return {"epoch": self._epoch, "batch": (self._cycle.first + read) % self._cycle.length,
                    "order": self._cycle.order, "cycle": self._cycle.length,
                    "per step": self._per_step, **self._start}
        is_left = one is not None and not self._is_in_pass() and self._batch > 0
        if is_left and self._is_followed and self._epochs == "each" and not self._waiting:
            return {"epoch": self._epoch + one.is_trained, "batch": 0, "order": 0,
                    **self._ends.to_save()}
        return {"epoch": self._epoch, "batch": self._batch, "order": self._order,
                "per step": self._per_step, **self._ends.to_save(), **self._start}

    def _is_in_pass(self) -> bool:
        return self._pass is not None and self._pass.is_open

    def load_state_dict(self, state: dict[str, Any]) -> None:
        world = rank_and_world(None, None)[1]
        if state["world"] != world:
            raise ValueError(
                f"data: {world} ranks, and {state['world']} saved; expected as many ranks for a "
                "plain DataLoader, or holdfast.data.loader"
            )
        check_fingerprint(state, self._fingerprint)
        if len(state["generators"]) != len(self._generators.owned):
            raise ValueError(
                f"data: the loader has {len(self._generators.owned)} generators; "
                f"expected {len(state['generators'])} as in the checkpoint"
            )
        self._epoch, self._batch, self._order = state["epoch"], state["batch"], state["order"]
        self._waiting = "default" in state
        self._start = {key: state[key] for key in _START if key in state} if self._waiting else {}
        length = state.get("cycle")
        self._cycle = None if length is None else Cycle(length, self._batch, self._order)
        self._per_step, self._steps = state.get("per step"), 0
        self._noted, self._since_step = None, 0
        self._now = state.get("now")
        self._ends.load(state)
        if self.left_epoch is not None and not self._ends.is_known and self._waiting and (
                end := self.left_epoch.read(state)):
            self._ends.take(*end)
        self._left = None
        self._generators.restore_owned(state)
        if self._waiting:  # so that a set_epoch() for another epoch is noticed
            set_epochs(self._samplers, self._start["epochs"])
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
            set_epochs(self._samplers, [epoch] * len(self._samplers))

    # Which pass trains

    def note_step(self) -> int:
        one, batches = self._pass, super().note_step()
        self._steps += 1
        if one is self._pass is not None and one.is_open and self._per_step != batches:
            self._per_step = batches if self._per_step is None else 0
        if self._cycle is not None and not self._per_step:
            self._warn_once(_IRREGULAR)
        if self._is_in_pass():
            self._pass.stepped = self._batch
        self._noted = self._describe()
        return batches + (self._cycle is not None)

    def note_end(self) -> None:
        self._is_at_end = True

    def _position(self) -> Any:
        if self._epochs != "each" or (self._keeps_workers and self._pass.is_open):
            return None
        return {name: vars(self)[name] for name in _POSITION}

    def _set_position(self, position: Any) -> None:
        vars(self).update(position)

    def _is_look(self) -> bool:
        return (self._waiting and self._is_followed and self._epochs == "each"
                and self._start.get("grad", True) and not torch.is_grad_enabled())

    def _begin_anew(self) -> None:
        self._batch, self._order, self._start, self._waiting, self._cycle = 0, 0, {}, False, None

    def _count_epoch(self) -> None:
        self._epoch += 1

    # Iterating

    def _batches(self, one: Pass) -> Iterator[Any]:
        if self._batch > 0 and not self._waiting:  # the last `for` was left early
            self._waiting = self._epochs != "each"
            if not self._waiting:
                self._leave_epoch(self._pass, one)
        if self.left_epoch is not None and torch.is_grad_enabled():  # a validation may come between
            self.left_epoch.write()
        if not self._more():
            self._restore_generators()
            return iter(())
        self._check_told()
        told = epochs_of(self._samplers)
        self._per_step = self._per_step if self._waiting else None
        self._steps, one.first = 0, self._batch
        one.is_trained |= self._waiting  # also if it has no batches left
        one.was_interrupted = self._waiting and self._now is not None
        limit = self._ends.limit(one) if self._is_followed and self._waiting else None
        batches = self._begin()
        if self._at_end():  # the resumed epoch has no batches left; the samplers go on
            set_epochs(self._samplers, told)
        return self._counted(one, batches, self._tasks.epoch.digests, limit)

    def _counted(self, one: Pass, batches: Iterator[Any], digests: collections.deque[int],
                 limit: tuple[int, int] | None) -> Iterator[Any]:
        had_ended = (self._at_end() or self._is_at(limit)) and self._is_told_another_epoch()
        if one.first > 0 and self._is_followed and self._epochs == "each" and not self._ends.is_known:
            if count := count_of(one):
                self._warn_once(_COUNTED.format(count=count, batch=one.first))
        while True:
            while not self._is_at(limit) and (batch := next(batches, _NONE)) is not _NONE:
                self._batch += 1
                self._order = digests.popleft()
                yield batch
            if limit is not None and self._is_at(limit):
                self._end_where_left(one, batches, *limit)
            elif self._is_cycled(one):
                yield from self._go_round(one)
                return
            else:
                if one.is_trained and self._is_followed:
                    self._ends.ended(one, 0)
                self._finish_epoch(one)
            if (self._epochs == "each" and not had_ended) or not self._more():
                return
            had_ended, limit = False, None
            batches = self._begin()
            digests = self._tasks.epoch.digests

    def _is_at(self, limit: tuple[int, int] | None) -> bool:
        return limit is not None and limit[1] > 0 and self._batch >= limit[1]

    def _end_where_left(self, one: Pass, batches: Iterator[Any], read: int, trained: int) -> None:
        """Ends a resumed epoch where those before it were left, after as many batches were read."""
        for _ in zip(range(read - trained), batches, strict=False):
            pass
        if not self.has_partners:
            self._ends.say_ended(trained)
        self._finish_epoch(one)

    def _leave_epoch(self, left: Pass | None, then: Pass) -> None:
        if left is not None and left.is_trained and self._is_followed and not then.interrupted:
            self._left = left, self._batch
            if self.left_epoch is not None and left.first == 0 and not self._ends.is_known:
                self.left_epoch.left({"epoch": self._epoch, **self._start}, self._batch,
                                     min(left.stepped or self._batch, self._batch))
        self._finish_epoch(left)

    def _note_trained(self) -> None:
        # Only now: the last epoch of a training may be left anywhere, and a validation may follow.
        if self._left is not None:
            self._ends.ended(*self._left)
            self._left = None
        if self.left_epoch is not None:
            self.left_epoch.confirm()

    def _is_cycled(self, one: Pass) -> bool:
        """True if itertools.cycle keeps the batches of this pass, which have come to their end.

        Looking takes some milliseconds. So it is done until a pass that trains has ended without
        a cycle, and for a pass that began in the middle of an epoch.
        """
        if not (self._is_followed and one.is_trained) or self._epochs != "each":
            return False
        if self._cycle is not None:
            return True
        self._looks_for_cycle = (self._looks_for_cycle or one.first > 0) and is_cycled(one)
        return self._looks_for_cycle

    def _go_round(self, one: Pass) -> Iterator[Any]:
        """The batches that were read before a restart, which itertools.cycle has to keep, too."""
        one.is_kept = True
        if self._cycle is not None:
            return  # it has them all
        self._cycle = Cycle(self._batch, one.first, self._order)
        if one.first > 0:
            batches = self._again_from_start(lambda epoch: epoch.end_after(one.first), 0)
            yield from batches if self._workers else without_draws(batches, self.generators)

    def _is_told_another_epoch(self) -> bool:
        """True if the training called set_epoch() for another epoch than the loaded one."""
        pairs = zip(self._samplers, self._start["epochs"], strict=True)
        return self._told not in (None, self._epoch) or any(
            hasattr(sampler, "set_epoch") and getattr(sampler, "epoch", None) != epoch
            for sampler, epoch in pairs
        )

    def _check_told(self) -> None:
        """ValueError if the loop over epochs begins with 0 again, though epochs are done."""
        if not (self._waiting and self._is_followed and self._epochs == "each"):
            return
        pairs = zip(epochs_of(self._samplers), self._start["epochs"], strict=True)
        told = [*((now, then) for now, then in pairs if type(now) is type(then) is int),
                (self._epoch if self._told is None else self._told, self._epoch)]
        for now, then in told:
            if now < then:
                raise ValueError(f"data: set_epoch({now}) after a resume in epoch {then}; expected "
                                 "`for epoch in range(loader.epoch, ...)`, or the training makes "
                                 "more epochs than it should")

    def _more(self) -> bool:
        return not isinstance(self._epochs, int) or self._epoch < self._epochs

    def _finish_epoch(self, one: Pass | None) -> None:
        if one is None or one.is_trained or self._epochs != "each":
            self._epoch += 1
        else:
            one.is_uncounted = True
        self._begin_anew()

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
            return self._open(self._start["base"], lambda epoch: None, 0)
        self._waiting = False
        if self._cycle is None:
            batches = self._again_from_start(lambda epoch: epoch.skip(self._batch), self._order)
        else:
            batches = self._again_from_start(lambda epoch: epoch.rotate(self._batch), self._order)
            batches = batches if self._workers else without_draws(batches, self.generators)
        if self._now is not None:
            self._generators.restore_owned(self._now)
        self._restore_generators()
        return batches

    def _again_from_start(self, cut: Callable[[EpochTasks], None], order: int) -> Iterator[Any]:
        """Begins the epoch again; `cut` takes the part of it that is to be read.

        ValueError if the digest of what it takes away is another one.
        """
        with self._generators.keeping_process():
            self._generators.restore(self._start)
            set_epochs(self._samplers, self._start["epochs"])
            self._tell_epoch()
            # In a checkpoint of an earlier version, the states are those before this draw.
            base = self._start["base"] if "base" in self._start else self._draw_base()
            return self._open(base, cut, order)

    def _record_start(self) -> None:
        # In torch's order: first the base seed of the workers, then what the sampler draws.
        base = self._draw_base()
        self._tell_epoch()
        self._start = {"base": base, **self._generators.capture(),
                       "epochs": epochs_of(self._samplers), "grad": torch.is_grad_enabled()}

    def _draw_base(self) -> int:
        return int(torch.empty((), dtype=torch.int64).random_(generator=self._seeder))

    def _tell_epoch(self) -> None:
        """Calls set_epoch(), unless one `for` is one epoch: then the training itself does."""
        if self._epochs != "each":
            set_epochs(self._samplers, [self._epoch] * len(self._samplers))

    def _open(self, base: int, cut: Callable[[EpochTasks], None], order: int) -> Iterator[Any]:
        self._worker_seeds.manual_seed(base)
        before = functools.partial(self._generators.at_first_draw, self._start)
        epoch = self._tasks.epoch = EpochTasks(base, self._sampler, self._workers > 0, before)
        cut(epoch)
        if epoch.digest != order:
            raise ValueError(
                f"data: {type(self._samplers[-1]).__name__} gives another order than before the "
                "checkpoint; expected the same dataset, and a sampler that draws its order when "
                "an epoch begins"
            )
        return iter(self._inner)


_COUNTED = ("data: the loop leaves its epochs by a count that begins with 0 ({count}), and this epoch is resumed "
            "after its batch {batch}, so it may be left later than without a restart; expected "
            "`for i, batch in enumerate(loader, loader.batch)`")
_NONE = object()  # stands for a batch that is not there
_IRREGULAR = ("data: itertools.cycle repeats the batches of the loader, and steps have read different "
              "numbers of batches, so a resumed training may go on with another batch; expected as "
              "many batches for each ck.step()")
