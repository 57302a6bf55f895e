"""Makes a plain torch DataLoader that a training already uses resumable, where it is.

A Checkpointer cannot replace the loader that the training iterates. So it gives that very object
another class, whose iteration is that of `holdfast.data.resumable`.
"""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from holdfast.torch.data.base_loader import Loader
from holdfast.torch.data.resumable_loader import resumable


class ResumableDataLoader(DataLoader):
    """A DataLoader that hands out what its `position` does: a Loader made from it."""

    position: Loader

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self.position)

    @property
    def epoch(self) -> int:
        """The epoch of the next `for`, or of one that has not ended."""
        return self.position.epoch

    @property
    def batch(self) -> int:
        """How many batches of that epoch were handed out."""
        return self.position.batch

    def state_dict(self) -> dict[str, Any]:
        """The position, as plain values."""
        return self.position.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets the position; the next `for` begins there."""
        self.position.load_state_dict(state)


def adopt_plain(data: Any) -> Any:
    """Makes a plain DataLoader resumable and returns its position; returns others as they are.

    TypeError for a plain DataLoader that cannot be resumed, with what to write instead.
    """
    if isinstance(data, ResumableDataLoader):
        return data.position
    if type(data) is not DataLoader:
        return data
    position = resumable(data)
    data.__class__ = ResumableDataLoader
    data.position = position
    return position
