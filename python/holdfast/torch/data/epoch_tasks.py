"""The tasks of an epoch of a plain DataLoader: which samples each batch has, in the sampler's order."""

import collections
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Sampler

from holdfast.torch.data.read_batch import ReadTask, mix_seeds


class EpochTasks:
    """The rest of an epoch as tasks, with a digest of the order up to each task."""

    def __init__(self, base: int, sampler: Iterable[Any], seeded: bool,
                 before_first: Callable[[], None]) -> None:
        """`before_first` is called before the first batch of the sampler is drawn."""
        self._base, self._seeded = base, seeded  # the seeds of batches are made from the base
        self._indices: Iterator[tuple[int, Any]] = enumerate(_telling(iter(sampler), before_first))
        self.digest = 0
        self.digests: collections.deque[int] = collections.deque()

    def skip(self, batches: int) -> None:
        """Leaves the next batches out; their order counts for the digest."""
        for _, indices in itertools.islice(self._indices, batches):
            self._add(indices)

    def end_after(self, batches: int) -> None:
        """Leaves all but the first batches out. Their order is drawn at once."""
        self._indices = iter(list(itertools.islice(self._indices, batches)))

    def rotate(self, batches: int) -> None:
        """Puts the first batches behind all others. The digest is that of the whole epoch."""
        found = list(self._indices)
        for _, indices in found:
            self._add(indices)
        self._indices = iter([*found[batches:], *found[:batches]])

    def __iter__(self) -> Iterator[ReadTask]:
        for number, indices in self._indices:
            self._add(indices)
            self.digests.append(self.digest)
            yield ReadTask(indices, mix_seeds(self._base, number) if self._seeded else None)

    def _add(self, indices: Any) -> None:
        self.digest = zlib.crc32(repr(indices).encode(), self.digest)


def _telling(indices: Iterator[Any], before_first: Callable[[], None]) -> Iterator[Any]:
    before_first()
    yield from indices


class NewestTasks(Sampler[ReadTask]):
    """The tasks of the newest pass. A pass that has begun before keeps its own."""

    def __init__(self) -> None:
        self.epoch: Iterable[ReadTask] = ()

    def __iter__(self) -> Iterator[ReadTask]:
        return iter(self.epoch)


@dataclass(frozen=True)
class Cycle:
    """A pass whose batches itertools.cycle keeps, in the order from `first` on."""

    length: int  # batches
    first: int  # the batch of the epoch with which the pass began
    order: int  # digest of the whole epoch
