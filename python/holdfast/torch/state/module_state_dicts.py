"""What modules themselves do when a state_dict is made of them and loaded.

A module may override _save_to_state_dict() and put more into it than its parameters and
buffers, as quantized layers do. And it may override _load_from_state_dict() and take
buffers of another shape from it: observers of a quantization learn their shapes in the
first forward pass, and a new process has not had one.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from holdfast.torch.state.module_names import Entry
from holdfast.torch.values.dtypes import Saved


def overrides(module: nn.Module, method: str) -> bool:
    """True if the module has a method of its own by that name."""
    return getattr(type(module), method, None) is not getattr(nn.Module, method)


def added_by(module: nn.Module) -> dict[str, Any]:
    """What its state_dict has beside its parameters, buffers and extra state."""
    made: dict[str, Any] = {}
    module._save_to_state_dict(made, "", True)
    known = {*module._parameters, *module._buffers, "_extra_state"}
    return {name: value for name, value in made.items() if name not in known}


def put_back(module: nn.Module, added: Mapping[str, Any]) -> list[str]:
    """Has the module load what it added; the names of what it does not take."""
    unexpected: list[str] = []
    errors: list[str] = []
    _load(module, dict(added), unexpected, errors)
    return unexpected if not errors else list(added)


def reshaped(entries: Iterable[Entry], saved: Mapping[str, Saved]
             ) -> list[tuple[nn.Module, dict[str, Saved]]]:
    """Modules that would load buffers in the other shapes that they have in a checkpoint."""
    odd: dict[int, tuple[nn.Module, dict[str, Saved]]] = {}
    for entry in entries:
        info = saved.get(entry.name)
        if info is None or entry.is_parameter or isinstance(entry.kept, DTensor):
            continue
        if info.shape != tuple(entry.kept.shape) and info.dtype == entry.kept.dtype:
            module, wanted = odd.setdefault(id(entry.module), (entry.module, {}))
            wanted[entry.attribute] = info
    return [(module, wanted) for module, wanted in odd.values() if _takes(module, wanted)]


def reshape(module: nn.Module, wanted: Mapping[str, Saved],
            errors: list[str] | None = None) -> None:
    """Has the module load zeros in these shapes."""
    zeros = {name: torch.zeros(info.shape, dtype=info.dtype) for name, info in wanted.items()}
    _load(module, zeros, [], [] if errors is None else errors)


def _takes(module: nn.Module, wanted: Mapping[str, Saved]) -> bool:
    """True if the module loads buffers in these shapes, which is tried on a copy."""
    if not overrides(module, "_load_from_state_dict"):
        return False
    errors: list[str] = []
    try:
        trial = copy.copy(module)
        trial._buffers = {name: None if held is None else held.clone()
                          for name, held in module._buffers.items()}
        reshape(trial, wanted, errors)
    except Exception:  # whatever a method of the user's raises
        return False
    return not errors and all(_is_like(trial._buffers.get(name), info)
                              for name, info in wanted.items())


def _load(module: nn.Module, values: Mapping[str, Any], unexpected: list[str],
          errors: list[str]) -> None:
    """Loads these values, and everything else as it is."""
    state = {name: held for held_by in (module._parameters, module._buffers)
             for name, held in held_by.items()
             if held is not None and name not in module._non_persistent_buffers_set}
    with torch.no_grad():
        module._load_from_state_dict({**state, **values}, "", {"version": module._version}, True,
                                     [], unexpected, errors)


def _is_like(buffer: torch.Tensor | None, info: Saved) -> bool:
    return buffer is not None and Saved(buffer.dtype, tuple(buffer.shape)) == info
