"""What reading the batches of an epoch draws at random, and how a resumed epoch draws it again.

The loaders of accelerate read one batch ahead of the training. So when a step is saved, the next
batch exists already: what a random collator drew for it is gone from the generators. Therefore the
state of the generators is noted before the order of an epoch is drawn, and before each batch is
read. A resumed epoch puts the first back before it draws its order, and the second before it reads
the first batch. Before the second batch, it puts back the generators of the checkpoint.

Workers of a loader draw from generators of their own, which are not saved. They tell whether they
have drawn anything, so that a resume can say that it is not exact.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from holdfast.torch.values import generators


class ReadAhead:
    """Notes what the reading of a loader draws, for a checkpoint, and draws it again."""

    def __init__(self) -> None:
        self._begun: Any = None  # the generators before the order of the epoch was drawn
        self._before: Any = None  # the generators before the newest batch was read
        self._number = -1  # of the newest batch in its epoch
        self._loader: Any = None
        self._drawn: torch.Tensor | None = None  # not 0 if workers have drawn
        self._undo: Any = None  # the generators before the workers of a resumed run were made
        self._resumed: dict[str, Any] | None = None  # until the resumed epoch draws as before
        self._skipped = 0  # batches of the resumed epoch that were trained before
        self._restore: Any = None  # the generators of the checkpoint, until they are put back
        self._beside: Mapping[str, Any] = {}  # generators beside those of the process

    def watch(self, loader: Any) -> None:
        """Notes from now on what the reading of this loader draws."""
        inner = getattr(loader, "base_dataloader", loader)
        if not isinstance(inner, DataLoader) or inner.batch_sampler is None:
            return
        self._loader, self._drawn = inner, None
        # torch refuses to set another sampler, but this one gives the same batches.
        vars(inner)["batch_sampler"] = _NotedSampler(inner.batch_sampler, self)
        if inner.num_workers > 0:
            noted = _NotedCollate(inner.collate_fn)
            inner.collate_fn = noted
            inner.worker_init_fn = _NotedStart(inner.worker_init_fn, noted)
            self._drawn = noted.drawn

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        drawn = self._drawn is not None and bool(self._drawn[0])
        return {"begun": self._begun, "before": self._before, "number": self._number,
                "drawn by workers": drawn, "workers stay": self._workers_stay}

    @property
    def loaders(self) -> list[Any]:
        """The loader that is watched, if there is one."""
        return [] if self._loader is None else [self._loader]

    def also_notes(self, state: Any) -> None:
        """Notes also the generators that the state saves, and those that it finds in the loader."""
        state.data.read_by_trainer = self.loaders
        state.random.look()
        self._beside = state.generators

    def capture(self) -> dict[str, Any]:
        """All generators as they are now."""
        return generators.capture(self._beside)

    def resume(self, saved: dict[str, Any], resumed: Any) -> None:
        """Has the next epoch draw as before. `resumed` are the generators of the checkpoint."""
        self._resumed, self._restore = saved, resumed

    def begin_epoch(self, epoch: int, skipped: int) -> None:
        """Called before an epoch's iterator is made, of which so many batches were trained before."""
        self._skipped = skipped
        # Workers that stay are made once. An epoch that is not the first finds them, unless it is
        # of a process that resumed.
        missing = self._workers_stay and epoch > 0 and self._loader._iterator is None
        self._undo = self.capture() if missing else None

    def restore_now(self) -> None:
        """Puts back the generators of the checkpoint, unless that is done, or comes too early."""
        if self._restore is not None and (self._skipped or self._undo is None):
            self._put_back(self._take_restore())

    def before_order(self) -> None:
        """Called before the order of an epoch is drawn."""
        if self._resumed is not None and self._skipped:
            if self._resumed["begun"] is not None:
                self._put_back(self._resumed["begun"])
        elif self._undo is not None:
            self._put_back(self._undo)
            if self._restore is not None:
                self._put_back(self._take_restore())
        self._begun, self._undo = self.capture(), None

    def before_batch(self, number: int) -> None:
        """Called before a batch is read."""
        if self._loader.num_workers > 0:
            return
        if self._resumed is not None and self._skipped:
            ahead = self._resumed["number"] == self._skipped
            if ahead and number == self._skipped:
                self._put_back(self._resumed["before"])
            elif self._restore is not None and number == self._skipped + ahead:
                self._put_back(self._take_restore())
        self._before, self._number = self.capture(), number

    @property
    def _workers_stay(self) -> bool:
        return self._loader is not None and bool(self._loader.persistent_workers)

    def _take_restore(self) -> Any:
        restore, self._restore, self._resumed = self._restore, None, None
        return restore

    def _put_back(self, noted: Mapping[str, Any]) -> None:
        generators.restore({**noted, "extra": {}})
        generators.restore_extra(noted["extra"], self._beside)


def inexact_reads(saved: dict[str, Any], in_mid_epoch: bool) -> list[str]:
    """Sentences about what is not drawn again."""
    if not saved["drawn by workers"] or not (in_mid_epoch or saved["workers stay"]):
        return []
    until = "" if saved["workers stay"] else " until the epoch ends"
    return [f"data: what the workers of the loader draw at random (a random collator, such as "
            f"masking) differs{until}; expected dataloader_num_workers=0 for the same bits"]


class _NotedSampler:
    """A batch sampler that tells before it draws, and before each batch that it gives."""

    def __init__(self, sampler: Any, reads: ReadAhead) -> None:
        self._noted, self._reads = sampler, reads

    def __getattr__(self, name: str) -> Any:
        if name == "_noted":  # in a copy that has no attributes yet
            raise AttributeError(name)
        return getattr(self._noted, name)

    def __len__(self) -> int:
        return len(self._noted)

    def __iter__(self) -> Iterator[Any]:
        self._reads.before_order()
        for number, batch in enumerate(self._noted):
            self._reads.before_batch(number)
            yield batch


class _NotedCollate:
    """A collate function that tells, in a worker, whether anything was drawn there."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate
        self._start: Any = None  # the generators of the worker when it began
        self.drawn = torch.zeros(1, dtype=torch.uint8).share_memory_()

    def note_start(self) -> None:
        self._start = generators.capture()

    def __call__(self, samples: Any) -> Any:
        batch = self._collate(samples)
        if self._start is not None and not self.drawn[0] and self._start != generators.capture():
            self.drawn[0] = 1
        return batch


class _NotedStart:
    """The function that begins a worker, and after it a note of the generators."""

    def __init__(self, init: Callable[[int], Any] | None, collate: _NotedCollate) -> None:
        self._init, self._collate = init, collate

    def __call__(self, worker: int) -> None:
        if self._init is not None:
            self._init(worker)
        self._collate.note_start()
