"""What a loader reads its batches with: where a user's own random generators may be."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Source(NamedTuple):
    """The parts of one loader that are the user's."""

    dataset: Any
    collate_fn: Any
    sampler: Any = None
    workers: int = 0
    # Generators whose states the loader itself saves, and sets when it draws its order again.
    replayed: Sequence[Any] = ()
    # Names of generators that were seen to be drawn from in workers; None if that cannot be seen.
    drawn_in_workers: Callable[[], list[str]] | None = None
