"""Finds the schedulers and scalers of a training program, and what moves in them.

Nothing here calls code of the objects that it looks at: it reads their attributes as they lie.
"""

import gc
import re
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch import nn

from holdfast.torch.values.stored_attributes import attributes

_MOST_BLOCKS = 20_000_000  # in a program of more objects than this, looking at all takes seconds
# Classes of others that change a learning rate, and are no LRScheduler of torch.
_SCHEDULER = re.compile(r"sched|warmup|noam|anneal|LR$", re.IGNORECASE)
_MOST_FRAMES = 16
_SCALER_STEP = torch.amp.GradScaler.step.__code__


def schedulers_of(optimizers: Sequence[Any]) -> list[Any]:
    """All objects of this process that have one of the optimizers and change a learning rate.

    Takes some 20 ms, as much as Python's garbage collector takes now and then.
    """
    if not optimizers or sys.getallocatedblocks() > _MOST_BLOCKS:
        return []
    holders = gc.get_referrers(*optimizers)
    # Some objects keep their attributes in a dict of their own, which is found in their place.
    dicts = [one for one in holders if type(one) is dict and "__name__" not in one]
    if dicts:
        holders += gc.get_referrers(*dicts)
    found = {id(one): one for one in holders if _is_scheduler(type(one))}
    return [one for one in found.values()
            if any(value is optimizer for value in attributes(one).values()
                   for optimizer in optimizers)]


def _is_scheduler(kind: type) -> bool:
    return issubclass(kind, torch.optim.lr_scheduler.LRScheduler) or (
        bool(_SCHEDULER.search(kind.__name__)) and any("step" in vars(one) for one in kind.__mro__)
        and not issubclass(kind, torch.optim.Optimizer | nn.Module))


def calling_scaler() -> Any:
    """The scaler whose step() has led here, as it does to the step of an optimizer; or None."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None or frame.f_code is _SCALER_STEP:
            break
        frame = frame.f_back
    return None if frame is None or frame.f_code is not _SCALER_STEP else frame.f_locals["self"]


def progress(one: Any) -> list[Any]:
    """Numbers of the object, and versions of its tensors, which move when it makes a step.

    Those of schedulers in a list of the object count, too: some only pass calls on.
    """
    found: list[Any] = []
    for name, value in sorted(attributes(one).items()):
        if type(value) in (int, float):
            found.append((name, repr(value)))
        elif type(value) is torch.Tensor:
            found.append((name, id(value), 0 if value.is_inference() else value._version))
        elif type(value) in (list, tuple):
            found += [progress(part) for part in value if _is_scheduler(type(part))]
    return found
