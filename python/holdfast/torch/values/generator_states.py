"""Tells whether the state of an object has that of a random generator in it."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

import torch

from holdfast.torch.values.generators import is_generator

_MOST = 2000  # so many values are looked at
_MOST_ITEMS = 64  # so many items of one container
_TORCH = frozenset({5056, 16})  # bytes of the state of a generator of a CPU, and of a GPU
_PYTHON = 625  # numbers in the state of Python's generator


def saves_generators(one: Any) -> bool:
    """True if what the object's state_dict() returns has a generator, or what looks like its state.

    Such an object may have a way of its own to set its generators, which must not be interfered with.
    """
    function = getattr(one, "state_dict", None)
    waiting = [function() if callable(function) else one]
    for seen, value in enumerate(waiting):  # it grows
        if seen > _MOST:
            return False
        if _is_state(value):
            return True
        if isinstance(value, Mapping):
            waiting += islice(value.values(), _MOST_ITEMS)
        elif isinstance(value, list | tuple):
            waiting += islice(value, _MOST_ITEMS)
    return False


def _is_state(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dtype == torch.uint8 and value.dim() == 1 and value.numel() in _TORCH
    if isinstance(value, Mapping):
        return "bit_generator" in value
    return is_generator(value) or (isinstance(value, list | tuple) and len(value) == _PYTHON)
