"""Tells the training process which generators of its own a dataset draws from in loader workers.

A worker has a copy of the dataset. What it draws from a generator of the dataset's own, such as
`self.rng`, depends on all that this worker has read before, and no checkpoint can have it. Whether a
dataset does so shows only in the worker, which writes the names into memory that both processes see.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from holdfast.torch.values.found_generators import find_generators
from holdfast.torch.values.generators import capture_one

_BATCHES = 16  # so many batches are looked at in each worker
_ROOM = 1024  # bytes for the names


class WorkerDraws:
    """What the workers of one loader have told. Made in the training process."""

    def __init__(self) -> None:
        self._names = torch.zeros(_ROOM, dtype=torch.uint8).share_memory_()
        self._left = _BATCHES  # counted in the worker

    def names(self) -> list[str]:
        """The generators that were drawn from, such as "dataset.rng", as far as is known yet."""
        text = bytes(self._names.tolist()).partition(b"\0")[0].decode(errors="replace")
        return text.split("\n") if text else []

    @contextlib.contextmanager
    def watching(self, dataset: Any, collate: Any) -> Iterator[None]:
        """Compares, in a worker, the generators before and after a batch is read."""
        if self._left <= 0 or self._names[0]:
            yield
            return
        self._left -= 1
        before = _states(dataset, collate)
        yield
        after = _states(dataset, collate)
        if drawn := [name for name, state in after.items() if before.get(name) != state]:
            text = "\n".join(drawn).encode()[:_ROOM - 1]
            self._names[1:len(text)] = torch.tensor(list(text[1:]), dtype=torch.uint8)
            self._names[0] = text[0]  # last: a reader takes it as the sign that the rest is there


def _states(dataset: Any, collate: Any) -> dict[str, Any]:
    found = {**find_generators(dataset, "dataset"), **find_generators(collate, "collate_fn")}
    return {name: capture_one(name, one) for name, one in found.items()}
