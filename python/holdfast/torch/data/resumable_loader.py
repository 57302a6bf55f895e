"""A plain torch DataLoader that can be resumed: `holdfast.data.resumable`."""

from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from holdfast.torch.data.base_loader import Epochs, check_epochs
from holdfast.torch.data.plain_position import PlainPosition


def resumable(loader: Any, *, epochs: Epochs = "each", fingerprint: str | None = None) -> Any:
    """A loader like the given one that knows its position and can resume from it.

    It is for a torch DataLoader over a map-style dataset, with torch's samplers (random,
    sequential, subset, weighted, distributed) or others that draw their order when an epoch
    begins, from torch's, Python's or NumPy's generators or from one that they hold.
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

    `fingerprint` is a text that names the dataset. A state of a dataset with another one is refused.
    By default it is made of the dataset's class, its length, and parts of the arrays and lists of
    paths that it holds; a dataset of Hugging Face has its own.

    A loader with a state_dict of its own (torchdata's StatefulDataLoader) is returned as it is.
    TypeError says why a loader cannot be resumed, and what to do. A resume needs the same number
    of ranks; with `holdfast.data.loader` it does not.
    """
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return loader
    _check_plain(loader)
    check_epochs(epochs)
    return PlainPosition(loader, epochs, fingerprint)


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
