"""The tensors of models and optimizers as named pieces of whole tensors, and back.

Names are "model.<parameter or buffer>" and "optimizer.<parameter>.<slot>". The optimizer's
state is walked by parameter: asking torch for a state_dict may step an optimizer, and
loading one casts the moments. What is restored is written into the memory of the live
tensors; slots that a fresh optimizer does not have yet are made first, by make_slots().
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from holdfast import Box, TensorInfo
from holdfast.torch.boxes import (
    Copies,
    Part,
    Rule,
    check_plain,
    declared,
    local_of,
    part_of,
    rule_for,
    whole,
)
from holdfast.torch.ddp import copies_of_buffer
from holdfast.torch.dtypes import torch_dtype
from holdfast.torch.groups import has_objects, has_other, options_of, pack_other, set_options
from holdfast.torch.modules import Modules
from holdfast.torch.names import Entry, Renaming, by_key, join
from holdfast.torch.trees import names_in, pack, unpack
from holdfast.torch.watch import Watch

Models = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]
Optimizers = Optimizer | Sequence[Optimizer] | Mapping[str, Optimizer]

_Place = tuple[Entry, Optimizer, dict[str, Any]]  # a parameter, where its slots are, its group


@dataclass(frozen=True)
class Piece:
    """A named tensor of this process: which box it is of the whole, and its memory."""

    name: str
    tensor: torch.Tensor = field(repr=False)  # what is held here, detached, the same memory
    shape: tuple[int, ...]  # of the whole
    box: Box
    kind: Literal["parameter", "buffer", "slot", "object"]
    copies: Copies = "equal"  # what ranks with the same box hold; boxes.Part says more
    at_once: bool = False  # to be copied inside save(): it may change before the next step
    aliases: tuple[str, ...] = ()  # other names of the whole tensor
    outer: torch.Tensor | None = field(default=None, repr=False)  # whose _version counts


@dataclass(frozen=True)
class Saved:
    """A tensor of a checkpoint: all that is needed to make room for it."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, info: TensorInfo) -> Self:
        """As the checkpoint describes it."""
        return cls(torch_dtype(info.dtype), tuple(info.shape))


def piece_of(name: str, tensor: torch.Tensor, rules: Mapping[str, Rule]) -> Piece | None:
    """The piece of a tensor that is no parameter, buffer or slot (an EMA's, say).

    None if this rank holds nothing of it. TypeError or ValueError name what is refused.
    """
    check_plain(tensor, name)
    part = part_of(tensor, name, rule_for(name, rules))
    return None if part is None else _piece(name, tensor, part, "object")


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
        self._with_objects: list[tuple[str, dict[str, Any]]] = []
        self._with_other: list[tuple[str, Optimizer]] = []
        self._group_names: dict[int, tuple[list[torch.Tensor], list[str]]] = {}
        self._blanks: list[tuple[dict[str, Any], str]] = []  # slots that nobody has filled yet

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
        if self._watch is None or not self._watch.same():
            self.forget()
            self._look()
        return self._pieces

    def forget(self) -> None:
        """Lets go of all tensors but the parameters, for they may have been replaced."""
        self._watch = None
        self._pieces = []
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
            "groups": [group for key, optimizer in self._optimizers
                       for group in self._groups(key, optimizer)],
            "slots": {prefix: {slot: pack(value, join(prefix, slot)).tree
                               for slot, value in state.items()
                               if not isinstance(value, torch.Tensor)}
                      for prefix, state in self._with_objects},
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
        while self._blanks:
            state, slot = self._blanks.pop()
            state.pop(slot, None)
        made: list[str] = []
        places = self._places()
        for name, info in saved.items():
            prefix, slot = _split(name, places)
            if prefix is None or "." in slot:
                continue
            entry, optimizer, group = places[prefix]
            state = optimizer.state[entry.kept]
            if not isinstance(state.get(slot), torch.Tensor):
                scalars = objects.get("scalars", {})
                state[slot] = self._blank(name, info, entry, group, scalars.get(slot))
                self._blanks.append((state, slot))
                made.append(name)
        return made + self._make_containers(saved, objects.get("slots", {}), places)

    def load_objects(self, objects: Mapping[str, Any]) -> list[str]:
        """Sets hyper-parameters and other plain values, when the tensors are filled.

        Each group takes what was saved for its parameters, whatever group they were in, and
        ValueError says so if that differs among them. Returns the parameters of which
        nothing was saved.
        """
        self._blanks.clear()
        options = {name: group["options"] for group in objects["groups"]
                   for name in group["params"]}
        missing: list[str] = []
        for key, optimizer in self._optimizers:
            for group in optimizer.param_groups:
                names = [self._slot_prefix(key, self._entry(p)) for p in group["params"]]
                missing += [name for name in names if name not in options]
                set_options(group, [n for n in names if n in options], options)
            for name, value in objects.get("other", {}).get(join("optimizer", key), []):
                optimizer.state[name] = unpack(value, {})
        return missing

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
        made = [self._make(*found) for found in self._live(watch)]
        states = list(self._states())
        self._scalars = {slot: value.device.type for _, _, state in states
                         for slot, value in state.items()
                         if isinstance(value, torch.Tensor) and value.dim() == 0}
        self._with_objects = [(prefix, state) for prefix, _, state in states
                              if has_objects(state)]
        self._with_other = [one for one in self._optimizers if has_other(one[1])]
        self._pieces = [piece for piece in made if piece is not None]
        self._watch = watch  # last: what is refused now is refused at the next look, too

    def _live(self, watch: Watch) -> Iterator[tuple[str, Entry, torch.Tensor]]:
        """(name, its own entry or its parameter's, the tensor) of all tensors."""
        for entry in self.entries:
            yield entry.name, entry, entry.kept
        for _, optimizer in self._optimizers:
            _watch_states(watch, optimizer)
        for prefix, entry, state in self._states():
            tensors = [key for key, value in state.items() if isinstance(value, torch.Tensor)]
            if len(tensors) == len(state):
                watch.values(state)
            else:
                watch.items(state, tensors)
            for slot, value in state.items():
                name = join(prefix, str(slot))
                if isinstance(value, torch.Tensor):
                    watch.memory(value)
                    yield name, entry, value
                else:
                    watch.object(state, slot)
                    for inside, tensor in pack(value, name).tensors.items():
                        yield inside, entry, tensor

    def _states(self) -> Iterator[tuple[str, Entry, dict[str, Any]]]:
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
            aliases = _slot_aliases(name, source)
        if part is None:
            return None
        return _piece(name, tensor, part, kind, aliases)  # type: ignore[arg-type]

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
        raise _odd_slot(name, slot.shape, parameter.shape)

    # Making slots

    def _places(self) -> dict[str, _Place]:
        """Where slots of each name go, aliases included."""
        places: dict[str, _Place] = {}
        for key, optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    entry = self._entry(parameter)
                    for name in (entry.name, *entry.aliases):
                        prefix = join("optimizer", key, name.removeprefix("model."))
                        places[prefix] = (entry, optimizer, group)
        return places

    def _blank(self, name: str, info: Saved, entry: Entry, group: Mapping[str, Any],
               device: str | None) -> torch.Tensor:
        parameter, part = entry.kept, self._parts[entry.name]
        aside = info.shape == () and device == "cpu"  # a count that is kept off the GPU
        aside = aside and (parameter.device.type != "cpu" or name.endswith(".step"))
        like = info.shape == (tuple(parameter.shape) if part is None else part.shape)
        like = like and not aside
        if like and rule_for(name, self._rules) is None:
            return torch.empty_like(parameter.detach(), dtype=info.dtype)
        with_parameter = not aside or group.get("capturable") or group.get("fused")
        return torch.empty(self._local_shape(name, info, part), dtype=info.dtype,
                           device=parameter.device if with_parameter else "cpu")

    def _local_shape(self, name: str, info: Saved, part: Part | None) -> Sequence[int]:
        rule = rule_for(name, self._rules)
        if rule is not None:
            return declared(info.shape, rule, name, is_whole=True).box.shape
        scalar = len(info.shape) == 0 or info.shape == (1,)
        if scalar or (part is not None and part == whole(part.shape)):
            return info.shape
        raise _odd_slot(name, info.shape, part.shape if part is not None else ())

    def _make_containers(self, saved: Mapping[str, Saved], slots: Mapping[str, Any],
                         places: Mapping[str, _Place]) -> list[str]:
        """Slots that are no tensors; those inside them are made."""
        made: list[str] = []
        for prefix, trees in slots.items():
            if prefix not in places:
                continue
            entry, optimizer, _ = places[prefix]
            for slot, tree in trees.items():
                inside = names_in(tree)
                blanks = {name: torch.empty(
                    self._local_shape(name, saved[name], self._parts[entry.name]),
                    dtype=saved[name].dtype, device=entry.kept.device) for name in inside}
                optimizer.state[entry.kept][slot] = unpack(tree, blanks)
                self._blanks.append((optimizer.state[entry.kept], slot))
                made += inside
        return made

    def _groups(self, key: str, optimizer: Optimizer) -> list[dict[str, Any]]:
        return [{"params": self._names_of(key, group), "options": options_of(key, group)}
                for group in optimizer.param_groups]

    def _names_of(self, key: str, group: dict[str, Any]) -> list[str]:
        parameters = group["params"]
        seen, names = self._group_names.get(id(group), ([], []))
        if len(seen) != len(parameters) or not all(map(operator.is_, seen, parameters)):
            names = [self._slot_prefix(key, self._entry(p)) for p in parameters]
            self._group_names[id(group)] = (list(parameters), names)
        return names


def _watch_states(watch: Watch, optimizer: Optimizer) -> None:
    """Which parameters have a state; others may be values of the optimizer's own."""
    watch.attribute(optimizer, "state")
    if has_other(optimizer):
        watch.items(optimizer.state, [k for k in optimizer.state if isinstance(k, torch.Tensor)])
    else:
        watch.values(optimizer.state)


def _piece(name: str, tensor: torch.Tensor, part: Part,
           kind: Literal["parameter", "buffer", "slot", "object"],
           aliases: tuple[str, ...] = ()) -> Piece:
    local = local_of(tensor)
    return Piece(name, local, part.shape, part.box, kind, part.copies,
                 kind == "buffer" or local.numel() <= 1, aliases, tensor)


def _odd_slot(name: str, shape: Sequence[int], parameter: Sequence[int]) -> ValueError:
    return ValueError(f"{name}: shape {tuple(shape)} of a parameter of {tuple(parameter)} that "
                      f'is cut over ranks, want a rule for it: spec={{"{name}": ...}}')


def _slot_aliases(name: str, entry: Entry) -> tuple[str, ...]:
    own = entry.name.removeprefix("model.")
    head, _, slot = name.rpartition(own + ".")
    return tuple(f"{head}{alias.removeprefix('model.')}.{slot}" for alias in entry.aliases)


def _split(name: str, places: Mapping[str, Any]) -> tuple[str | None, str]:
    """A slot's name as its parameter's and the rest; None if there is no such parameter."""
    head, dot, rest = name.rpartition(".")
    while dot:
        if head in places:
            return head, rest
        head, dot, last = head.rpartition(".")
        rest = f"{last}.{rest}"
    return None, ""
