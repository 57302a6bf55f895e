"""The parameters and buffers of models, followed while the models change.

Buffers are taken as they are. A parameter stays the one that was first found by its name:
FSDP puts a gathered one in its place at times. Any other in its place is refused, for the
optimizer would go on with the old one. Other strides over the same memory (`p.data = p.data.t()`)
are not seen: to ask each tensor for them takes longer than all the rest.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from holdfast.torch.state.change_detection import Watch
from holdfast.torch.state.module_names import (
    Entry,
    Renaming,
    by_key,
    collect_entries,
    gathering_modules,
    reshard,
)


class Modules:
    """A module, a list of stages, or several by name, after they are wrapped and sharded."""

    def __init__(self, models: Any, names: Renaming | Sequence[Renaming | None] | None) -> None:
        self._models = by_key(models)
        self._names = names
        self._by_name: dict[str, Entry] = {}
        self._by_id: dict[int, Entry] = {}
        self._gathered: set[int] = set()  # ids of parameters that FSDP replaces at times
        self.entries: list[Entry] = []  # as find() found them
        for _, model in self._models:
            reshard(model)

    def find(self) -> None:
        """Looks at all modules anew; ValueError, by name, for a parameter that was replaced."""
        entries = collect_entries(self._models, self._names)
        for entry in entries:
            entry.kept = self._kept(entry)
        self.entries = entries
        self._by_name = {entry.name: entry for entry in entries}
        self._by_id = {id(entry.kept): entry for entry in entries}
        inside = set().union(*(gathering_modules(model) for _, model in self._models))
        self._gathered = {id(entry.kept) for entry in entries if id(entry.module) in inside}

    def named(self, name: str) -> Entry | None:
        """The parameter or buffer of that name."""
        return self._by_name.get(name)

    def of(self, tensor: torch.Tensor) -> Entry | None:
        """Of a parameter, as an optimizer has it."""
        return self._by_id.get(id(tensor))

    def watch(self) -> Watch:
        """One that sees whether find() would find other tensors.

        The tag of a parameter or buffer is its place in `entries`. A buffer with several
        names has none, for another may have been put in place of it under one name alone.
        """
        watch = Watch(partial(_stands_for, self._gathered))
        sharded = {id(entry.live): entry.kept for entry in self.entries}
        tags = {id(entry.kept): tag for tag, entry in enumerate(self.entries)
                if not (entry.is_parameter or entry.aliases)}
        modules = {id(module): module for _, model in self._models for module in model.modules()}
        for module in modules.values():
            watch.values(module._modules)
            watch.values(module._buffers, tags=[tags.get(id(b)) for b in module._buffers.values()])
            watch.values(module._parameters,
                         [sharded.get(id(p), p) for p in module._parameters.values()])
        for tag, entry in enumerate(self.entries):
            watch.memory(entry.kept, tag)
        return watch

    def replace(self, entry: Entry, tensor: torch.Tensor) -> bool:
        """Follows a buffer that was put in place of another; False if it is known already."""
        if id(tensor) in self._by_id:
            return False
        del self._by_id[id(entry.kept)]
        self._by_id[id(tensor)] = entry
        entry.kept = tensor
        return True

    def _kept(self, found: Entry) -> torch.Tensor:
        known = self._by_name.get(found.name)
        if known is None or not (known.is_parameter and found.is_parameter):
            return found.kept
        if known.kept is found.kept or _stands_for(self._gathered, known.kept, found.kept):
            return known.kept
        raise ValueError(f"{found.name}: replaced by another parameter, want it attached anew")


def _stands_for(gathered: set[int], kept: Any, live: Any) -> bool:
    """True if FSDP may have put it, gathered, in place of the sharded parameter."""
    if id(kept) not in gathered or not isinstance(kept, DTensor):
        return False
    mesh = live.device_mesh if isinstance(live, DTensor) else None
    return isinstance(live, torch.Tensor) and kept.device_mesh != mesh
