"""The slots of optimizers in a checkpoint, and how they are allocated in a fresh optimizer.

A slot is what an optimizer keeps for a parameter, such as "exp_avg". Most slots are tensors and
are found by their names. A slot that is no tensor is packed as a tree. Odd slots, whose keys are
no simple names (a number, a text with a dot), are packed together in one dict per parameter: the
name of a tensor could not tell such a key.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from holdfast import TensorName
from holdfast.torch.state.empty_like import empty_like
from holdfast.torch.state.module_names import Entry
from holdfast.torch.state.param_groups import Place
from holdfast.torch.values.boxes import Part, Rule, part_by_rule, rule_for, whole
from holdfast.torch.values.dotted_names import join
from holdfast.torch.values.dtypes import SavedTensor
from holdfast.torch.values.trees import TYPE, pack, tensor_names_in, unpack


def odd_slots(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """The slots of a parameter whose keys are no simple names."""
    return {key: value for key, value in state.items() if type(key) is not str or "." in key}


def has_objects(state: Mapping[Any, Any]) -> bool:
    """True if the names of tensors do not describe the whole state of a parameter."""
    return any(not isinstance(value, torch.Tensor) for value in state.values()) or bool(
        odd_slots(state))


def pack_slots(states: Sequence[tuple[str, Mapping[Any, Any]]]) -> dict[str, Any]:
    """What these states have besides tensors with plain names, by the prefix of their slots."""
    slots: dict[str, Any] = {}
    odd: dict[str, Any] = {}
    for prefix, state in states:
        odd_ones = odd_slots(state)
        slots[prefix] = {slot: pack(value, join(prefix, slot)).tree
                         for slot, value in state.items()
                         if not isinstance(value, torch.Tensor) and slot not in odd_ones}
        if odd_ones:
            odd[prefix] = pack(odd_ones, prefix).tree
    return {"slots": slots, "odd": odd}


def remove_unsaved(state: dict[Any, Any], prefixes: Sequence[str], saved: Mapping[str, SavedTensor],
                   objects: Mapping[str, Any]) -> None:
    """Removes the slots of a parameter that the checkpoint does not have.

    Such slots come from steps that are undone: a checkpoint from before the first update has
    none. `prefixes` are what names of the slots begin with, for all names of the parameter.
    """
    known: set[Any] = set()
    for prefix in prefixes:
        known.update(objects.get("slots", {}).get(prefix, ()))
        known.update(unpack_keys(objects.get("odd", {}).get(prefix)))
        known.update(slot for slot in state
                     if type(slot) is str and join(prefix, slot) in saved)
    for slot in [slot for slot in state if slot not in known]:
        del state[slot]


def unpack_keys(tree: Any) -> list[Any]:
    """The keys of a packed dict of slots; no keys for None."""
    return [] if tree is None else list(unpack(tree, dict.fromkeys(tensor_names_in(tree))))


def odd_slot_error(name: str, shape: Sequence[int], parameter: Sequence[int]) -> ValueError:
    """The error for a slot whose shape is not its parameter's, where ranks hold parts of both."""
    return ValueError(f"{name}: shape {tuple(shape)}, and its parameter of {tuple(parameter)} is "
                      "cut over ranks; expected a rule for it: "
                      f'layout=holdfast.Layout(rules={{"{name}": ...}})')


class SlotAllocator:
    """Allocates slots that optimizers do not have yet, and removes them if they stay unfilled."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._rules = rules
        self._unfilled: list[tuple[dict[Any, Any], Any]] = []  # (state of a parameter, slot)
        self._parts: Mapping[str, Part | None] = {}

    def allocate(self, places: Mapping[str, Place], parts: Mapping[str, Part | None],
                 saved: Mapping[str, SavedTensor], objects: Mapping[str, Any]) -> list[str]:
        """Returns the names of the new slots; TensorState.allocate_slots() says more."""
        self._remove_unfilled()
        self._parts = parts
        trees = [*objects.get("slots", {}).values(), *objects.get("odd", {}).values()]
        packed = {name for tree in trees for name in tensor_names_in(tree)}
        scalars = objects.get("scalars", {})
        made: list[str] = []
        for name, info in saved.items():
            prefix, slot = _split(name, places)
            if prefix is None or name in packed:
                continue
            entry, optimizer, group = places[prefix]
            state = optimizer.state[entry.kept]
            if not isinstance(state.get(slot), torch.Tensor):
                self._put(state, slot, self._empty(name, info, entry, group, scalars.get(slot)))
                made.append(name)
        for part in ("slots", "odd"):
            made += self._make_packed(objects.get(part, {}), places, saved)
        return made

    def keep_all(self) -> None:
        """The new slots now hold what was saved: they stay."""
        self._unfilled.clear()

    def _remove_unfilled(self) -> None:
        while self._unfilled:
            state, slot = self._unfilled.pop()
            state.pop(slot, None)

    def _put(self, state: dict[Any, Any], slot: Any, value: Any) -> None:
        state[slot] = value
        self._unfilled.append((state, slot))

    def _make_packed(self, trees: Mapping[str, Any], places: Mapping[str, Place],
                     saved: Mapping[str, SavedTensor]) -> list[str]:
        """Makes slots that were packed as trees, with empty tensors inside them."""
        made: list[str] = []
        for prefix, tree in trees.items():
            if prefix not in places:
                continue
            entry, optimizer, group = places[prefix]
            inside = tensor_names_in(tree)
            tensors = {name: self._empty(name, saved[name], entry, group,
                                         "cpu" if _is_listed(tree, name) else None)
                       for name in inside}
            for slot, value in unpack(tree, tensors).items():
                self._put(optimizer.state[entry.kept], slot, value)
            made += inside
        return made

    def _empty(self, name: str, info: SavedTensor, entry: Entry, group: Mapping[str, Any],
               device: str | None) -> torch.Tensor:
        parameter, part = entry.kept, self._parts[entry.name]
        aside = info.shape == () and device == "cpu"  # a counter that stays in main memory
        aside = aside and (parameter.device.type != "cpu" or name.endswith(".step"))
        like = info.shape == (tuple(parameter.shape) if part is None else part.shape)
        like = like and not aside
        if like and rule_for(name, self._rules) is None:
            return empty_like(parameter.detach(), dtype=info.dtype)
        with_parameter = not aside or group.get("capturable") or group.get("fused")
        return torch.empty(self._local_shape(name, info, part), dtype=info.dtype,
                           device=parameter.device if with_parameter else "cpu")

    def _local_shape(self, name: str, info: SavedTensor, part: Part | None) -> Sequence[int]:
        rule = rule_for(name, self._rules)
        if rule is not None:
            return part_by_rule(info.shape, rule, name, is_whole=True).box.shape
        scalar = len(info.shape) == 0 or info.shape == (1,)
        if scalar or (part is not None and part == whole(part.shape)):
            return info.shape
        raise odd_slot_error(name, info.shape, part.shape if part is not None else ())


def _is_listed(tree: Any, name: str) -> bool:
    """True if the tensor is itself a slot of the tree, and was in main memory."""
    values = [value for _, value in tree["items"]] if TYPE in tree else tree.values()
    return any(isinstance(value, TensorName) and value.name == name for value in values)


def _split(name: str, places: Mapping[str, Any]) -> tuple[str | None, str]:
    """Splits the name of a slot into its parameter's prefix (None if unknown) and the rest."""
    head, dot, rest = name.rpartition(".")
    while dot:
        if head in places:
            return head, rest
        head, dot, last = head.rpartition(".")
        rest = f"{last}.{rest}"
    return None, ""
