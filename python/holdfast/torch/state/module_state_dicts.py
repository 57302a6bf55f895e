"""What modules do by methods of their own when their state_dict is made and loaded.

A module may override _save_to_state_dict() and add entries beside its parameters and buffers, as
quantized layers do. It may override _load_from_state_dict() and accept buffers of another shape:
the observers of a quantization learn their shapes in the first forward pass, which a new process
has not had yet.
"""

import copy
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from holdfast.torch.state.module_names import Entry
from holdfast.torch.values.dtypes import SavedTensor

_log = logging.getLogger("holdfast")


def overrides(module: nn.Module, method: str) -> bool:
    """True if the module has a method of its own by that name."""
    return getattr(type(module), method, None) is not getattr(nn.Module, method)


def entries_added_by(module: nn.Module) -> dict[str, Any]:
    """The entries of a module's state_dict beside its parameters, buffers and extra state."""
    made: dict[str, Any] = {}
    module._save_to_state_dict(made, "", True)
    known = {*module._parameters, *module._buffers, "_extra_state"}
    return {name: value for name, value in made.items() if name not in known}


def load_added_entries(module: nn.Module, added: Mapping[str, Any]) -> list[str]:
    """Has the module load the entries that it added; returns names that it does not load."""
    unexpected: list[str] = []
    errors: list[str] = []
    _load(module, dict(added), unexpected, errors)
    return unexpected if not errors else list(added)


def reshaped(entries: Iterable[Entry], saved: Mapping[str, SavedTensor], resized: Collection[str]
             ) -> list[tuple[nn.Module, dict[str, SavedTensor]]]:
    """Modules that load buffers whose shapes in the checkpoint are not the present ones.

    A buffer that is not persistent takes any shape: it is a cache that the module itself replaces. So does one
    that the training has `resized`, unless its module loads buffers in its own way.
    """
    odd: dict[int, tuple[nn.Module, dict[str, SavedTensor]]] = {}
    caches: list[tuple[nn.Module, dict[str, SavedTensor]]] = []
    for entry in entries:
        info = saved.get(entry.name)
        if info is None or entry.is_parameter or isinstance(entry.kept, DTensor):
            continue
        if info.shape == tuple(entry.kept.shape) or info.dtype != entry.kept.dtype:
            continue
        follows = entry.name in resized and not overrides(entry.module, "_load_from_state_dict")
        if (entry.is_transient or follows) and not entry.aliases:
            caches.append((entry.module, {entry.attribute: info}))
        else:
            module, wanted = odd.setdefault(id(entry.module), (entry.module, {}))
            wanted[entry.attribute] = info
    return caches + [one for one in odd.values() if _takes(*one)]


def reshape(module: nn.Module, wanted: Mapping[str, SavedTensor],
            errors: list[str] | None = None) -> None:
    """Has the module load zeros of these shapes, so that its buffers have them."""
    if overrides(module, "_load_from_state_dict") and not wanted.keys() <= module._non_persistent_buffers_set:
        zeros = {name: torch.zeros(info.shape, dtype=info.dtype) for name, info in wanted.items()}
        return _load(module, zeros, [], [] if errors is None else errors)
    for name, info in wanted.items():
        held = module._buffers[name]
        if name in module._non_persistent_buffers_set:
            # Told because the code may have been changed to make it so, with a longer context.
            _log.warning("resume: %s.%s, which is not persistent, is %s as in the checkpoint; it was "
                         "%s", type(module).__name__, name, list(info.shape), list(held.shape))
        module._buffers[name] = held.new_zeros(info.shape)


def _takes(module: nn.Module, wanted: Mapping[str, SavedTensor]) -> bool:
    """True if the module loads buffers of these shapes. It is tried on a copy."""
    if not overrides(module, "_load_from_state_dict"):
        return False
    errors: list[str] = []
    try:
        trial = copy.copy(module)
        trial._buffers = {name: None if held is None else held.clone()
                          for name, held in module._buffers.items()}
        reshape(trial, wanted, errors)
    except Exception:  # a method of the user's own may raise anything
        return False
    return not errors and all(_is_like(trial._buffers.get(name), info)
                              for name, info in wanted.items())


def _load(module: nn.Module, values: Mapping[str, Any], unexpected: list[str],
          errors: list[str]) -> None:
    """Has the module load these values; its other tensors are loaded as they are now."""
    state = {name: held for held_by in (module._parameters, module._buffers)
             for name, held in held_by.items()
             if held is not None and name not in module._non_persistent_buffers_set}
    with torch.no_grad():
        module._load_from_state_dict({**state, **values}, "", {"version": module._version}, True,
                                     [], unexpected, errors)


def _is_like(buffer: torch.Tensor | None, info: SavedTensor) -> bool:
    return buffer is not None and SavedTensor(buffer.dtype, tuple(buffer.shape)) == info
