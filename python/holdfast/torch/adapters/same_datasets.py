"""Whether a trainer that is resumed reads the datasets that it read before.

Holdfast's own loaders say that themselves; a trainer goes on in any dataset, even in another one of the
same length.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.torch.data.base_loader import Loader
from holdfast.torch.data.fingerprint import check_fingerprint, fingerprint_of
from holdfast.torch.values.stored_attributes import stored


def fingerprints_of(loaders: Iterable[Any]) -> list[str]:
    """A fingerprint for each loader; "" for one that has no dataset, or looks itself."""
    datasets = [None if isinstance(one, Loader) else dict(stored(one)).get("dataset") for one in loaders]
    return ["" if one is None else fingerprint_of(one) for one in datasets]


def check_fingerprints(saved: Sequence[str], ours: Sequence[str]) -> None:
    """ValueError if a dataset is another one. A checkpoint of before has none, and is accepted."""
    for theirs, own in zip(saved, ours, strict=False):
        if theirs and own:
            check_fingerprint({"fingerprint": theirs}, own,
                              f"dataset._fingerprint = {theirs!r} before the training")
