"""Buffers that a module registers as None, and that a forward pass fills later, or that it gives another shape.

A new process has None where a checkpoint has a tensor, or the other way round if a run goes back to an
earlier step. Both are made to fit before the tensors are filled. So is a buffer that training has resized: a
checkpoint names these, because any other buffer of another shape is that of another model.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from holdfast import _native
from holdfast.torch.state.module_names import Entry, Renaming, by_key, modules_of, rename
from holdfast.torch.values.boxes import Rule, rule_for
from holdfast.torch.values.dotted_names import join, plain_name
from holdfast.torch.values.dtypes import SavedTensor

KEY = "empty buffers"  # where each rank saves the names of its buffers that are None
RESIZED = "resized buffers"  # where it saves those of buffers that had another shape when it began


class EmptyBuffers:
    """The buffers of some models that are None, or were."""

    def __init__(self, models: Any, names: Renaming | Sequence[Renaming | None] | None,
                 rules: Mapping[str, Rule] | None, is_excluded: Callable[[Entry], bool]) -> None:
        self._models, self._names, self._rules = by_key(models), names, dict(rules or {})
        self._is_excluded = is_excluded
        self._made: list[tuple[nn.Module, str]] = []  # by the last fit(), which may have failed

    def names(self) -> list[str]:
        """The buffers that are None now."""
        return [name for name, module, key in self._slots() if module._buffers[key] is None]

    def fit(self, saved: Mapping[str, SavedTensor], empty: Collection[str]) -> bool:
        """Makes the buffers that a checkpoint has, and makes None what was None in it.

        True if anything has changed. What a new buffer holds is undefined until it is filled.
        """
        for module, key in self._made:  # an earlier checkpoint had it, and was damaged
            module._buffers[key] = None
        changed, self._made = bool(self._made), []
        for name, module, key in self._slots():
            if module._buffers[key] is not None:
                if name in empty:
                    module._buffers[key], changed = None, True
            elif name in saved and self._may_make(name, module, key):
                module._buffers[key] = torch.empty(saved[name].shape, dtype=saved[name].dtype,
                                                   device=self._device_of(module))
                self._made.append((module, key))
        return changed or bool(self._made)

    def _may_make(self, name: str, module: nn.Module, key: str) -> bool:
        rule = rule_for(name, self._rules)
        entry = Entry(name, torch.empty(0), module, key, False, None, "")
        return (rule is None or isinstance(rule, str)) and not self._is_excluded(entry)

    def _slots(self) -> list[tuple[str, nn.Module, str]]:
        """(name, module, attribute) of all buffers; one with several names has the first."""
        found: dict[tuple[int, str], tuple[str, nn.Module, str]] = {}
        for index, (key, model) in enumerate(self._models):
            renaming = self._names[index] if isinstance(self._names, (list, tuple)) else self._names
            for place, module in modules_of(model):
                for attribute in module._buffers:
                    name = join("model", key, rename(join(place, attribute), renaming))
                    found.setdefault((id(module), attribute), (name, module, attribute))
        return list(found.values())

    def _device_of(self, module: nn.Module) -> torch.device:
        """Where the module's other tensors are, or else the model's."""
        for one in (module, *(model for _, model in self._models)):
            for tensor in (*one.parameters(), *one.buffers()):
                return tensor.device
        return torch.device("cpu")


def shapes_of(entries: Iterable[Entry]) -> dict[str, tuple[int, ...]]:
    """The present shapes of buffers, by name."""
    buffers = {entry.name: entry.live for entry in entries if not entry.is_parameter}
    return {name: tuple(buffer.shape) for name, buffer in buffers.items() if buffer is not None}


def saved_resized(found: _native.SavedStep) -> set[str]:
    """The buffers that the training of any rank has resized."""
    return {name for own in found.rank_objects for name in own.get(RESIZED, ())}


def saved_empty(found: _native.SavedStep) -> set[str]:
    """The buffers that were None on all ranks that had them."""
    names = {name for own in found.rank_objects for name in own.get(KEY, ())}
    return names - {plain_name(tensor.name) for tensor in found.tensors}
