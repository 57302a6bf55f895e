"""Data loaders whose order survives restarts: `holdfast.data`.

    loader = holdfast.data.loader(dataset, batch_size=256, seed=0)   # 256 for all ranks together
    loader = holdfast.data.resumable(plain_torch_dataloader)
    dataset = holdfast.data.Files("c4/*.jsonl")                      # the user's own files

`Sequence`, the order itself, and `Files` need no torch. The other names import torch when they are used.
"""

from typing import TYPE_CHECKING, Any

from holdfast._native import Sequence
from holdfast.corpus import Files

if TYPE_CHECKING:
    from holdfast.torch.data import BatchSampler, Loader, loader, mix, resumable

__all__ = ["BatchSampler", "Files", "Loader", "Sequence", "loader", "mix", "resumable"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast.torch import data

    return getattr(data, name)


def __dir__() -> list[str]:
    return __all__
