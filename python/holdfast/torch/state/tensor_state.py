"""The tensors of models and optimizers as named pieces of whole tensors, and how they come back.

Names are "model.<parameter or buffer>" and "optimizer.<parameter>.<slot>". The optimizer's
state is walked parameter by parameter, because asking torch for a state_dict may step an
optimizer, and loading one casts the moments. What is restored is written into the memory of the
live tensors; allocate_slots() first makes the slots that a fresh optimizer does not have yet.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from holdfast.torch.state import empty_buffers
from holdfast.torch.state.buffer_copies import copies_of_buffer
from holdfast.torch.state.change_detection import ChangeDetector
from holdfast.torch.state.empty_buffers import EmptyBuffers
from holdfast.torch.state.model_tensors import STRIDES, Exclude, ModelTensors, odd_strides
from holdfast.torch.state.module_names import Entry, Renaming, by_key
from holdfast.torch.state.module_state_dicts import reshape, reshaped
from holdfast.torch.state.optimizer_slots import (
    SlotAllocator,
    has_objects,
    odd_slot_error,
    odd_slots,
    pack_slots,
    remove_unsaved,
)
from holdfast.torch.state.optimizer_states import OptimizerStates, note_earlier_steps, slot_prefixes
from holdfast.torch.state.param_groups import (
    check_options,
    group_options,
    has_global_state,
    pack_global_state,
    remove_global_state,
    set_options,
)
from holdfast.torch.state.piece import Piece, make_piece
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
from holdfast.torch.values.dtypes import SavedTensor
from holdfast.torch.values.trees import pack, unpack

Models = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]
Optimizers = Optimizer | Sequence[Optimizer] | Mapping[str, Optimizer]


class _Cell(NamedTuple):
    """The place in a module or an optimizer where the tensor of a piece is found again."""

    name: str
    entry: Entry  # the tensor's own entry, or that of the parameter whose slot it is
    container: Mapping[Any, Any] | None = None  # None for a parameter, which stays the same
    key: Any = None

    def has(self, tensor: torch.Tensor) -> bool:
        """True if that tensor is the one that is there now."""
        found = self.entry.kept if self.container is None else self.container.get(self.key)
        return found is tensor


class TensorState:
    """The parameters, buffers and optimizer slots of this process.

    `model` is a module, a list of pipeline stages, or several modules by name; `optimizer`
    likewise. `names` renames tensors of stages whose names begin anew on each stage (one for all
    stages, or a list with one per stage); `rules` are rules, by name pattern, for tensors that
    do not show how they are cut; `exclude` says which tensors are left out;
    `averages_statistics` that an average of running statistics is kept. Make it once, after
    the model is wrapped and sharded and the optimizer is made: it keeps the sharded parameters,
    which FSDP replaces by gathered ones at times. It follows tensors that are put into the model
    or the optimizer later, but refuses a parameter that takes the place of another: the optimizer
    would go on with the old one.
    """

    def __init__(
        self,
        model: Models,
        optimizer: Optimizers | None = None,
        *,
        names: Renaming | Sequence[Renaming | None] | None = None,
        rules: Mapping[str, Rule] | None = None,
        exclude: Exclude = (),
        averages_statistics: bool = False,
    ) -> None:
        self._rules = dict(rules or {})
        self._averages_statistics = averages_statistics
        self._model = ModelTensors(model, names, exclude)
        self._empty_buffers = EmptyBuffers(model, names, rules, self._model.is_excluded)
        keyed = [] if optimizer is None else by_key(optimizer)
        self.optimizers = self._optimizers = OptimizerStates(keyed, self._model.entry_for_optimizer)
        self._parts: dict[str, Part | None] = {}
        self.transient: list[str] = []  # buffers that a state_dict() leaves out
        self._find_entries()
        self._first_shapes = empty_buffers.shapes_of(self.entries)
        self._pieces: list[Piece] = []
        self._detector: ChangeDetector | None = None
        self._scalars: dict[str, str] = {}  # slot: the device of tensors with one element
        self._cells: list[_Cell] = []  # the index is the detector's tag
        self._piece_index: dict[int, int] = {}  # tag -> index in _pieces
        self._with_objects: list[tuple[str, dict[Any, Any]]] = []
        self._with_global_state: list[tuple[str, Optimizer]] = []
        self._slots = SlotAllocator(self._rules)

    @property
    def entries(self) -> list[Entry]:
        """The parameters and buffers as pieces() last found them."""
        return self._model.entries

    @property
    def all_entries(self) -> list[Entry]:
        """The same with those that are excluded."""
        return [*self._model.entries, *self._model.excluded]

    def ddp_group(self, name: str) -> Any:
        """The process group of the DDP module around that parameter or buffer, or None."""
        entry = self._model.entry_named(name)
        return entry.ddp.process_group if entry is not None and entry.ddp is not None else None

    def pieces(self) -> list[Piece]:
        """All pieces that this process holds, as they are now.

        Returns the same list as before, unless some tensor was replaced by another.
        """
        detector = self._detector
        if detector is None or not (detector.is_unchanged() or self._replace_pieces(detector)):
            self.forget()
            self._make_pieces()
        return self._pieces

    def forget(self) -> None:
        """Lets go of all tensors but the parameters, because they may have been replaced."""
        self._detector = None
        self._pieces = []
        self._cells = []
        self._with_objects = []
        self._optimizers.forget()

    def has(self, tensor: torch.Tensor) -> bool:
        """True if the tensor is one of the parameters."""
        return self._model.entry_of(tensor) is not None

    def slot_prefixes(self) -> set[str]:
        """What names of slots begin with: "optimizer.<parameter>"."""
        return set(self._optimizers.places())

    def optimized(self) -> list[list[str]]:
        """The parameters that optimizers have, each by all its names ("optimizer.<parameter>")."""
        return self._optimizers.parameters()

    # Values of optimizers that are no tensors

    def objects(self, *, looked: bool = False) -> dict[str, Any]:
        """What optimizers hold that is no tensor, as plain values by parameter name.

        `looked` says that pieces() was called just now and need not be called again.
        """
        if not looked:
            self.pieces()
        return {
            "groups": [{"params": names, "options": group_options(key, group)}
                       for key, group, names in self._optimizers.named_groups()],
            **pack_slots(self._with_objects),
            "scalars": dict(self._scalars),
            "other": {join("optimizer", key): pack_global_state(key, optimizer)
                      for key, optimizer in self._with_global_state},
        }

    def check_options(self, objects: Mapping[str, Any]) -> None:
        """ValueError if load_objects() would refuse the objects. Changes nothing."""
        options = _options_in(objects)
        for _, _, names in self._optimizers.named_groups():
            check_options([name for name in names if name in options], options)

    def load_objects(self, objects: Mapping[str, Any]) -> list[str]:
        """Sets hyper-parameters and other plain values, after the tensors are filled.

        Each group takes what was saved for its parameters, whatever group they were in then;
        ValueError if that differs among them. Returns the parameters of which nothing was saved.
        """
        self._slots.keep_all()
        options = _options_in(objects)
        missing: list[str] = []
        for _, group, names in self._optimizers.named_groups():
            missing += [name for name in names if name not in options]
            set_options(group, [name for name in names if name in options], options)
        for key, optimizer in self._optimizers.keyed:
            for name, value in objects.get("other", {}).get(join("optimizer", key), []):
                optimizer.state[name] = unpack(value, {})
            note_earlier_steps(optimizer)
        return missing

    # Making the tensors fit a checkpoint

    def allocate_slots(self, saved: Mapping[str, SavedTensor],
                       objects: Mapping[str, Any]) -> list[str]:
        """Allocates the slots of a checkpoint that the optimizers do not have.

        `objects` are those of the checkpoint, merged over its ranks. Returns the names of the
        new slots, whose memory holds anything until it is filled. Moments have the dtype that
        was saved, whatever the dtype of the parameter is. Slots of an earlier call that were
        never filled, because its checkpoint was damaged, are removed.
        """
        return self._slots.allocate(self._optimizers.places(), self._parts, saved, objects)

    def remove_unsaved(self, saved: Mapping[str, SavedTensor], objects: Mapping[str, Any]) -> None:
        """Removes slots that the checkpoint does not have, after everything is loaded.

        There are such slots if resume() goes back to an earlier step of the same process. The
        slots of parameters that the checkpoint does not know at all stay.
        """
        known = {name for group in objects["groups"] for name in group["params"]}
        for key, optimizer in self._optimizers.keyed:
            for parameter, state in list(optimizer.state.items()):
                if not isinstance(parameter, torch.Tensor):
                    continue
                prefixes = slot_prefixes(key, self._optimizers.entry_of(parameter))
                if known.isdisjoint(prefixes):
                    continue
                remove_unsaved(state, prefixes, saved, objects)
                if not state:
                    del optimizer.state[parameter]
            remove_global_state(key, optimizer, objects)

    def reshaped(self, saved: Mapping[str, SavedTensor], resized: Collection[str]) -> dict[str, SavedTensor]:
        """Buffers with another shape in the checkpoint, which their modules load nevertheless."""
        taken = {(id(module), name): info
                 for module, wanted in reshaped(self._without_rule(), saved, resized)
                 for name, info in wanted.items()}
        return {entry.name: taken[id(entry.module), entry.attribute] for entry in self.entries
                if (id(entry.module), entry.attribute) in taken}

    def reshape(self, saved: Mapping[str, SavedTensor], empty: Collection[str], resized: Collection[str]) -> None:
        """Has modules give such buffers the shape that they have in the checkpoint.

        Also makes buffers that are None here and not there; `empty` were None there, and `resized` had another
        shape at first.
        """
        if self._empty_buffers.fit(saved, empty):
            self.forget()
            self._find_entries()
        for module, wanted in reshaped(self._without_rule(), saved, resized):
            reshape(module, wanted)
            self.forget()

    def _without_rule(self) -> list[Entry]:
        """The entries whose tensors are not parts of larger ones by a rule."""
        return [entry for entry in self.entries if rule_for(entry.name, self._rules) is None]

    def peculiarities(self) -> dict[str, Any]:
        """What a checkpoint says of buffers and of tensors that lie in memory in an unusual way."""
        resized = [name for name, shape in empty_buffers.shapes_of(self.entries).items()
                   if self._first_shapes.get(name, shape) != shape]
        return {"transient": self.transient, empty_buffers.KEY: self.empty, empty_buffers.RESIZED: resized,
                STRIDES: self._strides}

    def forget_gradients(self) -> None:
        """Removes all gradients: the next backward pass would add to those of undone steps."""
        for entry in self.entries:
            if entry.is_parameter:
                entry.kept.grad = None

    # Finding the tensors

    def _find_entries(self) -> None:
        """Finds parameters and buffers as they are now, and how they are cut."""
        self._model.find()
        for entry in self.entries:
            check_plain(entry.kept, entry.name)
        self.transient = [entry.name for entry in self.entries if entry.is_transient]
        self.empty = self._empty_buffers.names()  # buffers that are None
        self._strides = odd_strides(self.entries)
        self._parts = {entry.name: self._part_of_entry(entry) for entry in self.entries}
        self._optimizers.check()

    def _make_pieces(self) -> None:
        """Makes the pieces of all tensors, and a detector that notices replaced tensors."""
        self._find_entries()
        detector = self._model.make_detector()
        self._cells = [_Cell(entry.name, entry, None if entry.is_parameter else entry.container,
                             entry.attribute) for entry in self.entries]
        self._pieces, self._piece_index = [], {}
        for tag, name, entry, tensor in self._live_tensors(detector):
            piece = self._make_piece(name, entry, tensor)
            if piece is None:
                continue
            if tag is not None:
                self._piece_index[tag] = len(self._pieces)
            self._pieces.append(piece)
        states = list(self._optimizers.states())
        self._scalars = {slot: value.device.type for _, _, state in states
                         for slot, value in state.items()
                         if isinstance(value, torch.Tensor) and value.dim() == 0}
        self._with_objects = [(prefix, state) for prefix, _, state in states
                              if has_objects(state)]
        self._with_global_state = [one for one in self._optimizers.keyed
                                   if has_global_state(one[1])]
        # Set last: after a refusal above, the next call of pieces() must look and refuse again.
        self._detector = detector

    def _replace_pieces(self, detector: ChangeDetector) -> bool:
        """Makes new pieces for replaced tensors alone; False if anything else has changed.

        Some modules and optimizers assign new tensors in every step, and a walk over all the
        others would take milliseconds each time.
        """
        replaced = detector.replaced()
        if replaced is None:
            return False
        pieces = list(self._pieces)
        for tag, tensor in replaced.items():
            index = self._piece_index.get(tag)
            if index is None or not self._cells[tag].has(tensor):
                return False
            piece = self._piece_after_replacement(self._cells[tag], tensor, pieces[index])
            if piece is None or isinstance(tensor, DTensor) != isinstance(
                    pieces[index].outer, DTensor):
                return False
            pieces[index] = piece
            detector.update(tag, tensor)
        self._pieces = pieces
        return True

    def _piece_after_replacement(self, cell: _Cell, tensor: torch.Tensor,
                                 before: Piece) -> Piece | None:
        """The piece of a tensor that replaced another; None if all pieces must be made anew."""
        name, entry = cell.name, cell.entry
        if name != entry.name:
            if _are_alike(tensor, before.outer):
                return Piece(name, tensor.detach(), before.shape, before.box, before.kind,
                             before.copies, before.at_once, before.aliases, tensor,
                             before.of)
            if tensor.dim() == 0:
                self._scalars[cell.key] = tensor.device.type
        elif not entry.is_parameter:
            if tensor is not entry.kept and not self._model.replace(entry, tensor):
                return None
            self._parts[name] = self._part_of_entry(entry)
        elif self._part_of_entry(entry) != self._parts[name]:  # its slots would be cut anew, too
            return None
        return self._make_piece(name, entry, tensor)

    def _live_tensors(
        self, detector: ChangeDetector
    ) -> Iterator[tuple[int | None, str, Entry, torch.Tensor]]:
        """(tag, name, entry of the tensor or of its parameter, tensor) of all tensors."""
        for tag, entry in enumerate(self.entries):
            yield tag, entry.name, entry, entry.kept
        self._optimizers.expect_unchanged(detector)
        for prefix, entry, state in self._optimizers.states():
            odd = odd_slots(state)
            tags = self._tag_slots(prefix, entry, state, odd)
            tensors = [slot for slot, value in state.items() if isinstance(value, torch.Tensor)]
            if len(tensors) == len(state):
                detector.expect_values(state, tags=[tags.get(slot) for slot in tensors])
            else:
                detector.expect_items(state, tensors, [tags.get(slot) for slot in tensors])
            for slot, value in state.items():
                if isinstance(value, torch.Tensor):
                    detector.expect_memory(value, tags.get(slot))
                else:
                    detector.expect_no_tensor(state, slot)
                if slot in tags:
                    yield tags[slot], self._cells[tags[slot]].name, entry, value
                elif slot not in odd:
                    for name, tensor in pack(value, join(prefix, slot)).tensors.items():
                        yield None, name, entry, tensor
            for name, tensor in pack(odd, prefix).tensors.items():
                yield None, name, entry, tensor

    def _tag_slots(self, prefix: str, entry: Entry, state: Mapping[Any, Any],
                   odd: Mapping[Any, Any]) -> dict[Any, int]:
        """Gives tags to slots that are tensors under simple names."""
        tags: dict[Any, int] = {}
        for slot, value in state.items():
            if isinstance(value, torch.Tensor) and slot not in odd:
                tags[slot] = len(self._cells)
                self._cells.append(_Cell(join(prefix, slot), entry, state, slot))
        return tags

    # Which part of the whole tensor each one is

    def _make_piece(self, name: str, source: Entry, tensor: torch.Tensor) -> Piece | None:
        check_plain(tensor, name)
        if name == source.name:
            kind = "parameter" if source.is_parameter else "buffer"
            part, aliases = self._parts[name], tuple(source.aliases)
        else:
            kind, part = "slot", self._part_of_slot(name, source, tensor)
            aliases = self._optimizers.slot_aliases(name, source)
        if part is None:
            return None
        of = source.name if kind == "slot" else ""
        return make_piece(name, tensor, part, kind, aliases, of)  # type: ignore[arg-type]

    def _part_of_entry(self, entry: Entry) -> Part | None:
        tensor, rule = entry.kept, rule_for(entry.name, self._rules)
        part = part_of(tensor, entry.name, rule)
        if rule is not None or part is None or entry.is_parameter or isinstance(tensor, DTensor):
            return part
        return Part(part.shape, part.box, copies_of_buffer(
            entry, are_averaged=self._averages_statistics))

    def _part_of_slot(self, name: str, entry: Entry, slot: torch.Tensor) -> Part | None:
        rule = rule_for(name, self._rules)
        if rule is not None:
            return part_of(slot, name, rule)
        parameter = self._parts[entry.name]
        if parameter is None:  # this rank holds nothing of the parameter, so nothing of its slots
            return None
        if isinstance(slot, DTensor):
            if tuple(slot.shape) == parameter.shape:
                return part_of(slot, name)
        elif slot.shape == local_of(entry.kept).shape:
            return parameter
        elif slot.numel() == 1 or parameter == whole(parameter.shape):
            return whole(slot.shape, parameter.copies)
        raise odd_slot_error(name, slot.shape, parameter.shape)


def _options_in(objects: Mapping[str, Any]) -> dict[str, Any]:
    return {name: group["options"] for group in objects["groups"] for name in group["params"]}


def _are_alike(tensor: torch.Tensor, before: torch.Tensor | None) -> bool:
    """True if a cheap look shows that the piece of one fits the other."""
    return (before is not None and type(tensor) is torch.Tensor and is_plain(tensor)
            and type(before) is torch.Tensor and tensor.shape == before.shape
            and tensor.dtype == before.dtype and tensor.device == before.device)
