"""How parameters and buffers lie in memory, where it is not the usual way.

A checkpoint has the values of a tensor and not its strides. A product with a tensor of other strides
may have other bits, so a resume tells of them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from holdfast.torch.state.module_names import Entry
from holdfast.torch.values.dotted_names import name_a_few

KEY = "strides"


def odd_strides(entries: Iterable[Entry]) -> dict[str, list[int]]:
    """The strides of tensors that are not contiguous, by name."""
    tensors = {entry.name: entry.kept for entry in entries if not isinstance(entry.kept, DTensor)}
    return {name: list(one.stride()) for name, one in tensors.items()
            if one.layout is torch.strided and not one.is_contiguous()}


def inexact_strides(entries: Iterable[Entry], own: Mapping[str, Any]) -> list[str]:
    """A sentence about tensors that lay in memory in another way when they were saved."""
    if KEY not in own:  # an earlier version of Holdfast made the checkpoint
        return []
    live, saved = odd_strides(entries), own[KEY]
    names = [name for name in dict.fromkeys([*saved, *live]) if saved.get(name) != live.get(name)]
    if not names:
        return []
    return [f"{name_a_few(names)}: had other strides when it was saved (transposed, or channels last), "
            "so sums may differ in bits; expected the same memory format before resume()"]
