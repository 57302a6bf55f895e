"""The parameters and buffers of models, followed while the models change.

A buffer is the one that the module has now. A parameter stays the one that was first found by
its name, because FSDP puts a gathered one in its place at times. Any other parameter in its place
is refused: the optimizer would go on with the old one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from holdfast.torch.state.change_detection import ChangeDetector
from holdfast.torch.state.module_names import (
    Entry,
    Renaming,
    by_key,
    collect_entries,
    gathering_modules,
    reshard,
)
from holdfast.torch.values.dotted_names import name_a_few

STRIDES = "strides"  # the key of strides in a checkpoint

# Patterns of names, with *, or a function of name and tensor that says whether to leave it out.
Exclude = str | Sequence[str] | Callable[[str, torch.Tensor], bool]


class ModelTensors:
    """The tensors of a module, a list of stages, or several modules by name.

    The modules must be wrapped and sharded already.
    """

    def __init__(self, models: Any, names: Renaming | Sequence[Renaming | None] | None,
                 exclude: Exclude = ()) -> None:
        self._models = by_key(models)
        self._names = names
        self.is_excluded = _rule_of(exclude)
        self.excluded: list[Entry] = []  # what find() found last, of tensors that are left out
        self._by_name: dict[str, Entry] = {}
        self._by_id: dict[int, Entry] = {}
        self._gathered: set[int] = set()  # ids of parameters that FSDP replaces at times
        self.entries: list[Entry] = []  # what find() found last
        for _, model in self._models:
            reshard(model)

    def find(self) -> None:
        """Scans all modules again. Raises ValueError if a parameter is another object than before."""
        entries: list[Entry] = []
        self.excluded = []
        for entry in collect_entries(self._models, self._names):
            (self.excluded if self.is_excluded(entry) else entries).append(entry)
        for entry in entries:
            entry.kept = self._kept(entry)
        self.entries = entries
        self._by_name = {entry.name: entry for entry in entries}
        self._by_id = {id(entry.kept): entry for entry in entries}
        inside = set().union(*(gathering_modules(model) for _, model in self._models))
        self._gathered = {id(entry.kept) for entry in entries if id(entry.module) in inside}

    def entry_named(self, name: str) -> Entry | None:
        """The parameter or buffer of that name."""
        return self._by_name.get(name)

    def entry_of(self, tensor: torch.Tensor) -> Entry | None:
        """The entry of a parameter that an optimizer has."""
        return self._by_id.get(id(tensor))

    def entry_for_optimizer(self, tensor: torch.Tensor) -> Entry | None:
        """The same; ValueError if the parameter is left out, because its slots would be saved."""
        for entry in self.excluded:
            if entry.kept is tensor:
                raise ValueError(f"{entry.name}: exclude= leaves it out, and an optimizer has it; "
                                 "expected an optimizer of the other parameters alone")
        return self.entry_of(tensor)

    def make_detector(self) -> ChangeDetector:
        """A detector that notices when find() would find other tensors.

        The tag of a parameter or buffer is its index in `entries`. A buffer with several names
        has no tag, because it may be replaced under one of its names alone.
        """
        detector = ChangeDetector(partial(_stands_for, self._gathered))
        sharded = {id(entry.live): entry.kept for entry in self.entries}
        tags = {id(entry.kept): tag for tag, entry in enumerate(self.entries)
                if not (entry.is_parameter or entry.aliases)}
        modules = {id(module): module for _, model in self._models for module in model.modules()}
        for module in modules.values():
            detector.expect_values(module._modules)
            detector.expect_values(module._buffers,
                                   tags=[tags.get(id(b)) for b in module._buffers.values()])
            detector.expect_values(module._parameters,
                                   [sharded.get(id(p), p) for p in module._parameters.values()])
        for tag, entry in enumerate(self.entries):
            detector.expect_memory(entry.kept, tag)
            if entry.is_parameter:
                detector.expect_layout(entry.kept)
        return detector

    def replace(self, entry: Entry, tensor: torch.Tensor) -> bool:
        """Follows a buffer that replaced another; False if the model has it elsewhere already."""
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
        raise ValueError(f"{found.name}: replaced by another parameter; expected a new "
                         "Checkpointer after that")


def _rule_of(exclude: Exclude) -> Callable[[Entry], bool]:
    """Whether an entry is left out. TypeError if `exclude` says nothing of the kind."""
    if callable(exclude):
        return lambda entry: bool(exclude(entry.name.removeprefix("model."), entry.kept))
    patterns = [exclude] if isinstance(exclude, str) else list(exclude)
    for one in patterns:
        if not isinstance(one, str):
            raise TypeError(f"exclude: {one!r}; expected patterns of names, or a function of "
                            "name and tensor")
    return lambda entry: any(fnmatchcase(entry.name.removeprefix("model."), one)
                             for one in patterns)


def _stands_for(gathered: set[int], kept: Any, live: Any) -> bool:
    """True if `live` may be the gathered parameter that FSDP put in place of the sharded one."""
    if id(kept) not in gathered or not isinstance(kept, DTensor):
        return False
    mesh = live.device_mesh if isinstance(live, DTensor) else None
    return isinstance(live, torch.Tensor) and kept.device_mesh != mesh


def odd_strides(entries: Iterable[Entry]) -> dict[str, list[int]]:
    """The strides of tensors that are not contiguous, by name."""
    tensors = {entry.name: entry.kept for entry in entries if not isinstance(entry.kept, DTensor)}
    return {name: list(one.stride()) for name, one in tensors.items()
            if one.layout is torch.strided and not one.is_contiguous()}


def inexact_strides(entries: Iterable[Entry], own: Mapping[str, Any]) -> list[str]:
    """A sentence about tensors that lay in memory in another way when they were saved.

    A checkpoint has the values of a tensor and not its strides. A product with a tensor of other strides may
    have other bits.
    """
    if STRIDES not in own:  # an earlier version of Holdfast made the checkpoint
        return []
    live, saved = odd_strides(entries), own[STRIDES]
    names = [name for name in dict.fromkeys([*saved, *live]) if saved.get(name) != live.get(name)]
    if not names:
        return []
    return [f"{name_a_few(names)}: had other strides when it was saved (transposed, or channels last), "
            "so sums may differ in bits; expected the same memory format before resume()"]
