"""Data loaders that can be resumed: what `holdfast.data` shows when torch is there."""

from holdfast._native import Sequence
from holdfast.torch.data.base_loader import Loader
from holdfast.torch.data.mixture import mix
from holdfast.torch.data.resumable_loader import resumable
from holdfast.torch.data.sequence_loader import BatchSampler, loader

__all__ = ["BatchSampler", "Loader", "Sequence", "loader", "mix", "resumable"]
