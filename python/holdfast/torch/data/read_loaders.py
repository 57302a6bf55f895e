"""Tells of the batches that DataLoaders hand out, whoever reads them, and of their names."""

import functools
import sys
import weakref
from typing import Any, Protocol

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from holdfast.torch.values.stored_attributes import stored


class Listener(Protocol):
    """What is told."""

    def note(self, iterator: Any) -> None:
        """An iterator of a DataLoader has handed out a batch."""

    def note_end(self, iterator: Any) -> None:
        """An iterator of a DataLoader is at its end."""


listeners: "weakref.WeakSet[Listener]" = weakref.WeakSet()  # all that are told


@functools.cache
def watch_loaders() -> None:
    """From now on, iterators of DataLoaders tell of the batches that they hand out, and of their ends."""
    read_next = _BaseDataLoaderIter.__next__

    @functools.wraps(read_next)
    def told(self: Any) -> Any:
        try:
            batch = read_next(self)
        except StopIteration:
            for listener in tuple(listeners):
                listener.note_end(self)
            raise
        for listener in tuple(listeners):
            listener.note(self)
        return batch

    _BaseDataLoaderIter.__next__ = told


def name_of(dataset: Any) -> str:
    """The name that the program has for a loader of this dataset, as far as that can be found."""
    program = vars(sys.modules.get("__main__", sys))
    for name, one in list(program.items()):
        if issubclass(type(one), DataLoader) and dict(stored(one)).get("dataset") is dataset:
            return name
    return f"a DataLoader of a {type(dataset).__qualname__}"
