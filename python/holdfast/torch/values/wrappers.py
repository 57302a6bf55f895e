"""Modules that wrap others and put words into names: DDP, torch.compile, activation checkpointing."""

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel


def hides(module: nn.Module, key: str) -> bool:
    """True if the module is a wrapper, and the child of that name is what it wraps."""
    if key in ("_orig_mod", "_checkpoint_wrapped_module"):
        return True
    return key == "module" and issubclass(type(module), (DistributedDataParallel, DataParallel))
