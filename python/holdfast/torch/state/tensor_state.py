"""The tensors of models and optimizers as named pieces of whole tensors, and back.

Names are "model.<parameter or buffer>" and "optimizer.<parameter>.<slot>". The optimizer's
state is walked by parameter: asking torch for a state_dict may step an optimizer, and
loading one casts the moments. What is restored is written into the memory of the live
tensors; slots that a fresh optimizer does not have yet are made first, by make_slots().
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from holdfast.torch.state.buffer_copies import copies_of_buffer
from holdfast.torch.state.change_detection import Watch
from holdfast.torch.state.model_tensors import Modules
from holdfast.torch.state.module_names import Entry, Renaming, by_key
from holdfast.torch.state.module_state_dicts import reshape, reshaped
from holdfast.torch.state.optimizer_slots import (
    Place,
    SlotRoom,
    has_objects,
    odd_slot,
    odd_slots,
    pack_slots,
    remove_unsaved,
)
from holdfast.torch.state.param_groups import (
    check_options,
    has_other,
    options_of,
    pack_other,
    remove_other,
    set_options,
)
from holdfast.torch.state.piece import Piece as Piece, make_piece, piece_of as piece_of
from holdfast.torch.values.boxes import (
    Part,
    Rule,
    check_plain,
    is_plain,
    local_of,
    part_of,
    rule_for,
    whole,
)
from holdfast.torch.values.dotted_names import join
from holdfast.torch.values.dtypes import Saved as Saved
from holdfast.torch.values.trees import pack, unpack

Models = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]
Optimizers = Optimizer | Sequence[Optimizer] | Mapping[str, Optimizer]


class _Cell(NamedTuple):
    """Where a tensor of a piece is found again."""

    name: str
    entry: Entry  # its own, or its parameter's
    holder: Mapping[Any, Any] | None = None  # None for a parameter, which stays the same
    key: Any = None

    def has(self, tensor: torch.Tensor) -> bool:
        """True if that tensor is the one that is there now."""
        found = self.entry.kept if self.holder is None else self.holder.get(self.key)
        return found is tensor


class State:
    """The parameters, buffers and optimizer slots of this process.

    `model` is a module, a list of stages, or several by name; `optimizer` likewise.
    `names` renames what stages call by names that begin anew (one for all stages, or a
    list with one a stage); `spec` has rules, by pattern, for tensors that do not show how
    they are cut. Made once, after the model is wrapped and sharded and the optimizer made:
    it keeps the sharded parameters, which FSDP replaces by gathered ones at times. What is
    put into the model or the optimizer later is followed, but a parameter that takes the
    place of another is refused: the optimizer would go on with the old one.
    """

    def __init__(
        self,
        model: Models,
        optimizer: Optimizers | None = None,
        *,
        names: Renaming | Sequence[Renaming | None] | None = None,
        spec: Mapping[str, Rule] | None = None,
    ) -> None:
        self._rules = dict(spec or {})
        self._modules = Modules(model, names)
        self._optimizers = [] if optimizer is None else by_key(optimizer)
        self._parts: dict[str, Part | None] = {}
        self._find()
        self._pieces: list[Piece] = []
        self._watch: Watch | None = None
        self._scalars: dict[str, str] = {}
        self._cells: list[_Cell] = []  # by the tags of the watch
        self._place_of: dict[int, int] = {}  # of a tag's piece
        self._with_objects: list[tuple[str, dict[Any, Any]]] = []
        self._with_other: list[tuple[str, Optimizer]] = []
        self._group_names: dict[int, tuple[list[torch.Tensor], list[str]]] = {}
        self._room = SlotRoom(self._rules)

    @property
    def entries(self) -> list[Entry]:
        """The parameters and buffers as pieces() last found them."""
        return self._modules.entries

    def entry(self, name: str) -> Entry | None:
        """The parameter or buffer of that name."""
        return self._modules.named(name)

    def pieces(self) -> list[Piece]:
        """All pieces that this process holds, as they are now.

        The same list as before, unless some tensor was replaced by another.
        """
        if self._watch is None or not (self._watch.same() or self._renew(self._watch)):
            self.forget()
            self._look()
        return self._pieces

    def forget(self) -> None:
        """Lets go of all tensors but the parameters, for they may have been replaced."""
        self._watch = None
        self._pieces = []
        self._cells = []
        self._with_objects = []
        self._group_names = {}

    def has(self, tensor: torch.Tensor) -> bool:
        """True if it is one of the parameters."""
        return self._modules.of(tensor) is not None

    def slot_prefixes(self) -> set[str]:
        """What names of slots begin with: "optimizer.<parameter>"."""
        return set(self._places())

    def objects(self, *, looked: bool = False) -> dict[str, Any]:
        """What optimizers hold that is no tensor, as plain values by parameter name.

        `looked`: pieces() was called just now, which need not be done again.
        """
        if not looked:
            self.pieces()
        return {
            "groups": [{"params": names, "options": options_of(key, group)}
                       for key, group, names in self._named_groups()],
            **pack_slots(self._with_objects),
            "scalars": dict(self._scalars),
            "other": {join("optimizer", key): pack_other(key, optimizer)
                      for key, optimizer in self._with_other},
        }

    def make_slots(self, saved: Mapping[str, Saved], objects: Mapping[str, Any]) -> list[str]:
        """Makes room for the slots of a checkpoint that the optimizers do not have.

        `objects` are those of the checkpoint, merged over its ranks. Returns the names that
        were made; their memory holds anything until it is filled. Moments have the dtype
        that was saved, whatever that of the parameter is. Those of an earlier call that were
        not filled, for its checkpoint was damaged, are taken back.
        """
        return self._room.make(self._places(), self._parts, saved, objects)

    def remove_unsaved(self, saved: Mapping[str, Saved], objects: Mapping[str, Any]) -> None:
        """Takes from the optimizers what the checkpoint does not have, when all is loaded.

        That is left where resume() goes back to an earlier step of the same process. Of
        parameters that the checkpoint does not have at all nothing is taken.
        """
        known = {name for group in objects["groups"] for name in group["params"]}
        for key, optimizer in self._optimizers:
            for parameter, state in list(optimizer.state.items()):
                if not isinstance(parameter, torch.Tensor):
                    continue
                prefixes = self._slot_prefixes(key, self._entry(parameter))
                if known.isdisjoint(prefixes):
                    continue
                remove_unsaved(state, prefixes, saved, objects)
                if not state:
                    del optimizer.state[parameter]
            remove_other(key, optimizer, objects)

    def reshaped(self, saved: Mapping[str, Saved]) -> dict[str, Saved]:
        """Buffers that have another shape in the checkpoint, which their modules take."""
        taken = {(id(module), name): info for module, wanted in reshaped(self.entries, saved)
                 for name, info in wanted.items()}
        return {entry.name: taken[id(entry.module), entry.attribute] for entry in self.entries
                if (id(entry.module), entry.attribute) in taken}

    def reshape(self, saved: Mapping[str, Saved]) -> None:
        """Has modules make room for such buffers."""
        for module, wanted in reshaped(self.entries, saved):
            reshape(module, wanted)
            self.forget()

    def forget_gradients(self) -> None:
        """Those of steps that are undone would be added to; a new process has none."""
        for entry in self.entries:
            if entry.is_parameter:
                entry.kept.grad = None

    def check_options(self, objects: Mapping[str, Any]) -> None:
        """ValueError if load_objects() would refuse them, before anything is touched."""
        options = _options_in(objects)
        for _, _, names in self._named_groups():
            check_options([name for name in names if name in options], options)

    def load_objects(self, objects: Mapping[str, Any]) -> list[str]:
        """Sets hyper-parameters and other plain values, when the tensors are filled.

        Each group takes what was saved for its parameters, whatever group they were in, and
        ValueError says so if that differs among them. Returns the parameters of which
        nothing was saved.
        """
        self._room.filled()
        options = _options_in(objects)
        missing: list[str] = []
        for _, group, names in self._named_groups():
            missing += [name for name in names if name not in options]
            set_options(group, [name for name in names if name in options], options)
        for key, optimizer in self._optimizers:
            for name, value in objects.get("other", {}).get(join("optimizer", key), []):
                optimizer.state[name] = unpack(value, {})
        return missing

    def _named_groups(self) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
        """(key of the optimizer, group, what slots of its parameters begin with) of all groups."""
        for key, optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield key, group, self._names_of(key, group)

    # What is there

    def _find(self) -> None:
        """Parameters and buffers as they are now, and how they are cut."""
        self._modules.find()
        for entry in self.entries:
            check_plain(entry.kept, entry.name)
        self._parts = {entry.name: self._part_of_entry(entry) for entry in self.entries}
        self._check_optimizers()

    def _look(self) -> None:
        """Makes the pieces, and watches from where they were made."""
        self._find()
        watch = self._modules.watch()
        self._cells = [_Cell(entry.name, entry, None if entry.is_parameter else entry.holder,
                             entry.attribute) for entry in self.entries]
        self._pieces, self._place_of = [], {}
        for tag, name, entry, tensor in self._live(watch):
            piece = self._make(name, entry, tensor)
            if piece is None:
                continue
            if tag is not None:
                self._place_of[tag] = len(self._pieces)
            self._pieces.append(piece)
        states = list(self._states())
        self._scalars = {slot: value.device.type for _, _, state in states
                         for slot, value in state.items()
                         if isinstance(value, torch.Tensor) and value.dim() == 0}
        self._with_objects = [(prefix, state) for prefix, _, state in states
                              if has_objects(state)]
        self._with_other = [one for one in self._optimizers if has_other(one[1])]
        self._watch = watch  # last: what is refused now is refused at the next look, too

    def _renew(self, watch: Watch) -> bool:
        """Makes the pieces of tensors anew that took the place of others; False if that is not all.

        Some modules and optimizers assign new tensors in every step: what they leave alone
        need not be walked for it.
        """
        replaced = watch.replaced()
        if replaced is None:
            return False
        pieces = list(self._pieces)
        for tag, tensor in replaced.items():
            place = self._place_of.get(tag)
            if place is None or not self._cells[tag].has(tensor):
                return False
            piece = self._made_anew(self._cells[tag], tensor, pieces[place])
            if piece is None or isinstance(tensor, DTensor) != isinstance(
                    pieces[place].outer, DTensor):
                return False
            pieces[place] = piece
            watch.update(tag, tensor)
        self._pieces = pieces
        return True

    def _made_anew(self, cell: _Cell, tensor: torch.Tensor, before: Piece) -> Piece | None:
        """The piece of a tensor that took the place of another; None if it is another case."""
        name, entry = cell.name, cell.entry
        if name != entry.name:
            if _are_alike(tensor, before.outer):
                return Piece(name, tensor.detach(), before.shape, before.box, before.kind,
                             before.copies, before.at_once, before.aliases, tensor)
            if tensor.dim() == 0:
                self._scalars[cell.key] = tensor.device.type
        elif not entry.is_parameter:
            if tensor is not entry.kept and not self._modules.replace(entry, tensor):
                return None
            self._parts[name] = self._part_of_entry(entry)
        elif self._part_of_entry(entry) != self._parts[name]:  # which its slots follow
            return None
        return self._make(name, entry, tensor)

    def _live(self, watch: Watch) -> Iterator[tuple[int | None, str, Entry, torch.Tensor]]:
        """(tag, name, its own entry or its parameter's, the tensor) of all tensors."""
        for tag, entry in enumerate(self.entries):
            yield tag, entry.name, entry, entry.kept
        for _, optimizer in self._optimizers:
            _watch_states(watch, optimizer)
        for prefix, entry, state in self._states():
            odd = odd_slots(state)
            tags = self._tag_slots(prefix, entry, state, odd)
            tensors = [slot for slot, value in state.items() if isinstance(value, torch.Tensor)]
            if len(tensors) == len(state):
                watch.values(state, tags=[tags.get(slot) for slot in tensors])
            else:
                watch.items(state, tensors, [tags.get(slot) for slot in tensors])
            for slot, value in state.items():
                if isinstance(value, torch.Tensor):
                    watch.memory(value, tags.get(slot))
                else:
                    watch.object(state, slot)
                if slot in tags:
                    yield tags[slot], self._cells[tags[slot]].name, entry, value
                elif slot not in odd:
                    for name, tensor in pack(value, join(prefix, slot)).tensors.items():
                        yield None, name, entry, tensor
            for name, tensor in pack(odd, prefix).tensors.items():
                yield None, name, entry, tensor

    def _tag_slots(self, prefix: str, entry: Entry, state: Mapping[Any, Any],
                   odd: Mapping[Any, Any]) -> dict[Any, int]:
        """Tags of slots that are tensors under simple names."""
        tags: dict[Any, int] = {}
        for slot, value in state.items():
            if isinstance(value, torch.Tensor) and slot not in odd:
                tags[slot] = len(self._cells)
                self._cells.append(_Cell(join(prefix, slot), entry, state, slot))
        return tags

    def _states(self) -> Iterator[tuple[str, Entry, dict[Any, Any]]]:
        for key, optimizer in self._optimizers:
            for parameter, state in optimizer.state.items():
                if isinstance(parameter, torch.Tensor):
                    entry = self._entry(parameter)
                    yield self._slot_prefix(key, entry), entry, state

    def _entry(self, parameter: torch.Tensor) -> Entry:
        entry = self._modules.of(parameter)
        if entry is None:
            raise ValueError(f"optimizer: a parameter of shape {tuple(parameter.shape)} that "
                             "the model does not have, want the optimizer made after it")
        return entry

    def _slot_prefix(self, key: str, entry: Entry) -> str:
        return join("optimizer", key, entry.name.removeprefix("model."))

    def _slot_prefixes(self, key: str, entry: Entry) -> list[str]:
        """By all names that the parameter has."""
        return [join("optimizer", key, name.removeprefix("model."))
                for name in (entry.name, *entry.aliases)]

    def _slot_aliases(self, name: str, entry: Entry) -> tuple[str, ...]:
        for key, _ in self._optimizers if entry.aliases else ():
            first, *others = self._slot_prefixes(key, entry)
            if name.startswith(first + "."):
                return tuple(other + name.removeprefix(first) for other in others)
        return ()

    def _check_optimizers(self) -> None:
        taken: set[str] = set()
        for key, optimizer in self._optimizers:
            if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
                raise TypeError("optimizer: a ZeroRedundancyOptimizer, want fully_shard()")
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    prefix = self._slot_prefix(key, self._entry(parameter))
                    if prefix in taken:
                        raise ValueError(f"{prefix}: in two optimizers, want them by name: "
                                         'optimizer={"a": ..., "b": ...}')
                    taken.add(prefix)

    # Pieces

    def _make(self, name: str, source: Entry, tensor: torch.Tensor) -> Piece | None:
        check_plain(tensor, name)
        if name == source.name:
            kind = "parameter" if source.is_parameter else "buffer"
            part, aliases = self._parts[name], tuple(source.aliases)
        else:
            kind, part = "slot", self._part_of_slot(name, source, tensor)
            aliases = self._slot_aliases(name, source)
        if part is None:
            return None
        return make_piece(name, tensor, part, kind, aliases)  # type: ignore[arg-type]

    def _part_of_entry(self, entry: Entry) -> Part | None:
        tensor, rule = entry.kept, rule_for(entry.name, self._rules)
        part = part_of(tensor, entry.name, rule)
        if rule is not None or part is None or entry.is_parameter or isinstance(tensor, DTensor):
            return part
        return Part(part.shape, part.box, copies_of_buffer(entry))

    def _part_of_slot(self, name: str, entry: Entry, slot: torch.Tensor) -> Part | None:
        rule = rule_for(name, self._rules)
        if rule is not None:
            return part_of(slot, name, rule)
        parameter = self._parts[entry.name]
        if parameter is None:  # nothing here, as of its parameter
            return None
        if isinstance(slot, DTensor):
            if tuple(slot.shape) == parameter.shape:
                return part_of(slot, name)
        elif slot.shape == local_of(entry.kept).shape:
            return parameter
        elif slot.numel() == 1 or parameter == whole(parameter.shape):
            return whole(slot.shape, parameter.copies)
        raise odd_slot(name, slot.shape, parameter.shape)

    # Making slots

    def _places(self) -> dict[str, Place]:
        """Where slots of each name go, aliases included."""
        places: dict[str, Place] = {}
        for key, optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    entry = self._entry(parameter)
                    for prefix in self._slot_prefixes(key, entry):
                        places[prefix] = (entry, optimizer, group)
        return places

    def _names_of(self, key: str, group: dict[str, Any]) -> list[str]:
        parameters = group["params"]
        seen, names = self._group_names.get(id(group), ([], []))
        if len(seen) != len(parameters) or not all(map(operator.is_, seen, parameters)):
            names = [self._slot_prefix(key, self._entry(p)) for p in parameters]
            self._group_names[id(group)] = (list(parameters), names)
        return names


def _options_in(objects: Mapping[str, Any]) -> dict[str, Any]:
    return {name: group["options"] for group in objects["groups"] for name in group["params"]}


def _watch_states(watch: Watch, optimizer: Optimizer) -> None:
    """Which parameters have a state; others may be values of the optimizer's own."""
    watch.attribute(optimizer, "state")
    if has_other(optimizer):
        watch.items(optimizer.state, [k for k in optimizer.state if isinstance(k, torch.Tensor)])
    else:
        watch.values(optimizer.state)


def _are_alike(tensor: torch.Tensor, before: torch.Tensor | None) -> bool:
    """True if one can be in place of the other, and that is known without a closer look."""
    return (before is not None and type(tensor) is torch.Tensor and is_plain(tensor)
            and type(before) is torch.Tensor and tensor.shape == before.shape
            and tensor.dtype == before.dtype and tensor.device == before.device)
