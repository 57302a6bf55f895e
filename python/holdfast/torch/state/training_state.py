"""All that a checkpoint of a training process holds, gathered and put back.

Tensors are pieces (tensor_state.py); the rest is plain objects, in two trees: rank 0's, and what
is a rank's own (generators, the options of the parameters that it holds, the extra state of
its modules, the position of a loader that differs by rank, and the values of objects on all
ranks but rank 0, for they may differ: rank_values.py).
"""

import contextlib
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from holdfast import _native
from holdfast.torch.data.base_loader import Loader
from holdfast.torch.data.foreign_loader import Foreign
from holdfast.torch.state import ddp_comm_hooks as comm_hooks
from holdfast.torch.state import gradients as pending
from holdfast.torch.state.buffer_copies import running_statistics
from holdfast.torch.state.capture import Captured as Captured, HeldState
from holdfast.torch.state.ddp_comm_hooks import CommHooks
from holdfast.torch.state.diverged_replicas import Differing, Parted
from holdfast.torch.state.extra_state import ExtraState, differing, names_of
from holdfast.torch.state.module_names import Renaming, by_key
from holdfast.torch.state.optimizer_state_dicts import added_by
from holdfast.torch.state.param_groups import merge_objects
from holdfast.torch.state.piece import Piece
from holdfast.torch.state.rank_values import check_rules, choose, rules_inside
from holdfast.torch.state.stateful import Holder, Several, kind_of, kinds_of, together
from holdfast.torch.state.tensor_state import Models, Optimizers, State
from holdfast.torch.values import generators as random_generators
from holdfast.torch.values.boxes import Rule, rule_for
from holdfast.torch.values.dotted_names import join, own_name, plain_name
from holdfast.torch.values.dtypes import Saved

FORMAT = 1


class Contents:
    """The state of this process, as a Checkpointer was given it."""

    def __init__(
        self,
        model: Models,
        optimizer: Optimizers | None,
        things: Mapping[str, Any],
        data: Any,
        names: Renaming | Sequence[Renaming | None] | None,
        spec: Mapping[str, Rule] | None,
        generators: Mapping[str, Any] | None,
        group: dist.ProcessGroup | None,
    ) -> None:
        several = dist.is_available() and dist.is_initialized()
        self._group = group
        self._rank = dist.get_rank(group) if several else 0
        self._world = dist.get_world_size(group) if several else 1
        self.models = [one for _, one in by_key(model)]
        self._state = State(model, optimizer, names=names, spec=spec)
        self._held = HeldState(self._state, self._rank)
        self._extra = ExtraState(model, names)
        self._data = data
        self._data_is_own = data is not None and getattr(data, "per_rank", True)
        rules = self._rules = dict(spec or {})
        check_rules(rules)
        given = {key: together(key, thing) for key, thing in things.items() if thing is not None}
        self._thing_kinds = {key: kinds_of(thing) for key, thing in given.items()}
        self._holders = [Holder(key, thing, self._rules_of(key, thing, rules))
                         for key, thing in given.items()]
        if data is not None:
            _check_data(data)
        known = data is None or isinstance(data, Loader)
        self._foreign = None if known else Foreign(data)
        if data is not None:
            thing = data if self._foreign is None else self._foreign.thing
            self._holders.append(Holder("data", thing, rules_inside("data", rules)))
        keyed = [] if optimizer is None else by_key(optimizer)
        for name, thing in added_by(keyed).items():
            self._holders.append(Holder(name, thing, rules_inside(name, rules)))
            self._holders[-1].capture()  # what cannot be stored is said at once
        self._comm_hooks = CommHooks(model)
        self._hooks_holder = Holder(comm_hooks.KEY, self._comm_hooks)
        hooks = [self._hooks_holder] if self._comm_hooks.is_possible else []
        self._captured_holders = [*self._holders, *hooks]
        self._generators = dict(generators or {})
        # Refuses what it does not know; and what is slow the first time is done then.
        random_generators.capture(self._generators)
        self._notes: dict[str, str] = {}  # what is not surely right of what is restored
        self._pending: Holder | None = None  # gradients that are being restored
        self.optimizers = [one for _, one in keyed]
        self._kinds = {join("optimizer", key): kind_of(one) for key, one in keyed}
        self.parallel = f"{self._world} ranks"
        _forget_on_load(self)

    def held(self) -> _native.Pieces:
        """What this rank saves of the model and its optimizers, as the engine takes it."""
        return self._held.capture().held

    def capture(self, *, gradients: bool = False) -> Captured:
        """All tensors, and the objects that may have some; they are not copied yet.

        `gradients`: those that wait for an update, too.
        """
        captured = self._held.capture()
        own = captured.rank_objects
        others: list[tuple[Piece, bool]] = []
        for holder in self._captured_holders:
            tree, pieces = holder.capture()
            is_own = self._is_own(holder)
            if is_internal(holder.key) and not tree:
                continue
            if not is_own:
                captured.objects.setdefault("things", {})[holder.key] = tree
            if is_own or self._keeps_own_values(holder):
                own.setdefault("things", {})[holder.key] = tree
            others += [(piece, is_own) for piece in pieces if self._held.saves(piece)]
        if self._extra.all_names:
            own["extra"], pieces = self._extra.capture()
            others += [(piece, True) for piece in pieces if self._held.saves(piece)]
        if gradients:
            own[pending.KEY], pieces = Holder(pending.KEY, self._gradients()).capture()
            others += [(piece, True) for piece in pieces]
        if others:
            self._held.add(captured, others, self._thing_name)
        if gradients:
            self._held.forget_objects()  # else their memory is kept until the next save
        return captured

    def _gradients(self) -> pending.Gradients:
        return pending.Gradients({entry.name: entry.kept for entry in self._state.entries
                                  if entry.is_parameter}, self.models)

    def complete(self, captured: Captured) -> None:
        """Adds what has no tensors. It takes as long, and the copying has begun meanwhile."""
        captured.objects["format"] = FORMAT
        captured.objects["parted"] = self._held.parted.state()
        captured.objects["optimizers"] = dict(self._kinds)
        captured.objects["kinds"] = {key: dict(kinds) for key, kinds in self._thing_kinds.items()}
        captured.rank_objects["optimizer"] = self._state.objects(looked=True)
        captured.rank_objects["generators"] = random_generators.capture(self._generators)
        if self._foreign is not None:
            self._foreign.go_on()
            captured.rank_objects["data draws"] = self._foreign.draws

    def copy_at_once(self, names: Iterable[str]) -> None:
        """These tensors are written to between updates: copied inside save() from now on."""
        self._held.copy_at_once(names)

    def part(self, found: Iterable[Differing]) -> None:
        """Ranks hold these tensors with different values, which were taken for equal ones."""
        self._held.part(found)

    def take_parted(self, found: _native.Looked) -> None:
        """Tensors that were each rank's own in the checkpoint are that from now on, too."""
        self._held.parted = Parted.of(found) if self._world > 1 else Parted()
        self._held.forget()

    def inexact(self, found: _native.Looked) -> list[str]:
        """Sentences about tensors of which a rank gets what another one had."""
        return Parted.of(found).sentences(len(found.rank_objects), self._world)

    def forget(self) -> None:
        """Lets go of tensors that may have been replaced: they would take memory until a save."""
        self._held.forget()
        self._state.forget()

    def owns(self, optimizer: torch.optim.Optimizer) -> bool:
        """True if it updates parameters that are saved here: the first of a group tells."""
        return any(self._state.has(parameter) for group in optimizer.param_groups
                   for parameter in group["params"][:1])

    def expected(self, found: _native.Looked | None = None) -> dict[str, Saved]:
        """Names that the model itself has, which a checkpoint of it must have too.

        Given one, buffers are as it has them where their module takes them so.
        """
        taken = {} if found is None else self._state.reshaped(self._saved_for_me(found))
        return {self._held.saved_name(piece): taken.get(
                    piece.name, Saved(piece.tensor.dtype, tuple(piece.shape)))
                for piece in self._state.pieces() if piece.kind in ("parameter", "buffer")}

    def has_any(self, found: _native.Looked) -> bool:
        """True if the checkpoint has a parameter or buffer of some rank."""
        saved = {plain_name(name) for name in _saved(found)}
        wanted = {plain_name(name) for name in self.expected()}
        return any(self.all_ranks(not wanted or bool(saved & wanted)))

    def known(self) -> set[str]:
        """Names of tensors, and of what tensors belong to: a parameter's slots, an object."""
        names = {name for entry in self._state.entries for name in (entry.name, *entry.aliases)}
        names |= {holder.key for holder in self._holders} | {comm_hooks.KEY, pending.KEY}
        return names | self._state.slot_prefixes() | self.things | self._extra.all_names

    @property
    def things(self) -> set[str]:
        """Keys of the objects that are given."""
        return {holder.key for holder in self._holders if not is_internal(holder.key)}

    def missing_extra(self, found: _native.Looked) -> list[str]:
        """Names of what modules keep beside tensors that the checkpoint does not have."""
        return sorted(self._extra.names - set(saved_extra(found)))

    def other_optimizers(self, found: _native.Looked) -> list[str]:
        """Sentences about optimizers that are of another kind than those of the checkpoint."""
        saved = found.objects.get("optimizers", {})
        return [f"{key} is a {saved[key]}, want a {kind}" for key, kind in self._kinds.items()
                if saved.get(key, kind) != kind]

    def other_things(self, found: _native.Looked) -> dict[str, str]:
        """Sentences, by key, about objects of another kind than those of the checkpoint."""
        saved = found.objects.get("kinds", {})
        return {key: f"{key} is {_words(saved[key])}, want {_words(kinds)}"
                for key, kinds in self._thing_kinds.items()
                if _short(saved.get(key, kinds)) != _short(kinds)}

    def all_ranks(self, value: Any) -> list[Any]:
        """What all ranks pass, by rank."""
        if self._world == 1:
            return [value]
        values: list[Any] = [None] * self._world
        dist.all_gather_object(values, value, self._group)
        return values

    def make_room(self, found: _native.Looked) -> list[_native.HeldPiece]:
        """Memory for all that is in the checkpoint, as pieces to fill."""
        saved, mine, ranks = _saved(found), self._saved_for_me(found), len(found.rank_objects)
        self._notes = {}
        held = []
        for holder in [*self._holders, self._hooks_holder]:
            tree = self._tree_of(holder, found)
            if tree is None:
                continue
            for piece in holder.make_room(tree, mine):
                copies = "own" if self._is_own(holder) else piece.copies
                held.append((piece, self._name_in(piece.name, copies, saved, ranks)))
        tree = self._gradient_tree(found)
        self._pending = None if tree is None else Holder(pending.KEY, self._gradients())
        if self._pending is not None:
            held += [(piece, self._name_in(piece.name, "own", saved, ranks))
                     for piece in self._pending.make_room(tree, mine)]
        objects = None if self.other_optimizers(found) else self._optimizer_objects(found)
        if objects is not None:
            self._state.check_options(objects)
        # Last, for it is what changes something, and the above may fail.
        self._state.reshape(mine)
        if objects is not None:
            self._state.make_slots(mine, objects)
        for piece in self._state.pieces():
            name = self._name_in(piece.name, piece.copies, saved, ranks)
            if name in saved:
                held.append((piece, name))
        if ranks != self._world:
            self._note_own([piece.name for piece, name in held if name != piece.name], found)
        trees = _extra_trees(found)
        held += [(piece, piece.name) for piece in self._extra.make_room(self._rank, trees, saved)]
        return [self._held.hold(piece, name) for piece, name in held]

    def _note_own(self, tensors: list[str], found: _native.Looked) -> None:
        """On another number of ranks, what was each rank's own is some rank's."""
        names = [*tensors, *differing(_extra_trees(found))]
        if names:
            self._notes["own"] = (f"{_few(names)}: each of {len(found.rank_objects)} ranks had its "
                                  "own, and those of one of them are taken")

    def load(self, restored: _native.Restored, found: _native.Looked) -> None:
        """Gives the objects what was restored; the tensors are filled already."""
        self._state.forget_gradients()
        if self.optimizers and not self.other_optimizers(found):
            objects = self._optimizer_objects(found)
            self._state.load_objects(objects)
            self._state.remove_unsaved(self._saved_for_me(found), objects)
        for holder in self._holders:
            if self._tree_of(holder, found) is not None:
                holder.load()
        self._extra.load()
        if self._extra.not_taken:
            self._notes["extra"] = (f"{_few(self._extra.not_taken)}: of a state_dict of its own, "
                                    "and not loaded from the checkpoint")

    def load_gradients(self) -> None:
        """Those that waited for an update. Last: DDP makes its buckets without any."""
        if self._pending is not None:
            self._pending.load()
            self._pending = None

    def inexact_gradients(self, found: _native.Looked) -> list[str]:
        """Sentences about gradients that waited for an update then, and were not restored."""
        trees = [own.get(pending.KEY) for own in found.rank_objects]
        lines = {line for tree in trees if tree is not None for line in tree["lost"]}
        if any(trees) and len(trees) != self._world:
            lines = {f"gradients of {len(trees)} ranks, and there are {self._world}"}
        return [f"saved in the middle of an update, without {line}" for line in sorted(lines)]

    def _gradient_tree(self, found: _native.Looked) -> Any:
        if len(found.rank_objects) != self._world:
            return None
        return found.rank_objects[self._rank].get(pending.KEY)

    def restore_generators(self, found: _native.Looked, report: Any) -> None:
        """When the loader's iterator exists, whose making draws from them, or before.

        Communication hooks get their state here, too: DDP's buckets were rebuilt just now,
        by a pass that their hooks have seen.
        """
        if self._tree_of(self._hooks_holder, found) is not None:
            self._hooks_holder.load()
        if unsaved := self._comm_hooks.unsaved():
            self._notes["unsaved"] = (f"{_few(unsaved)}: of a communication hook, and cannot be "
                                      "stored; expected a state_dict() and load_state_dict()")
        report.inexact.extend(self._notes.values())
        if len(found.rank_objects) != self._world:
            report.inexact.append(f"generators: of {len(found.rank_objects)} ranks, and there "
                                  f"are {self._world}: they go on as they are")
            return
        own = found.rank_objects[self._rank]

        def restore() -> None:
            lines = random_generators.restore(own["generators"], self._generators)
            report.inexact.extend(line for line in lines if line not in report.inexact)

        if isinstance(self._data, Loader):
            self._data.after_iter = restore
        elif self._foreign is None:
            restore()
        else:
            report.inexact += self._foreign.resumed(restore, own.get("data draws"))

    def _optimizer_objects(self, found: _native.Looked) -> dict[str, Any]:
        ranks = [own["optimizer"] for own in found.rank_objects]
        merged = merge_objects(ranks, self._rank if len(ranks) == self._world else None)
        if merged["differ"]:
            self._notes["optimizer"] = (
                f"{_few(merged['differ'])}: the {len(ranks)} ranks that saved had different "
                "hyper-parameters, and those of the first are taken")
        return merged

    # Names

    def _thing_name(self, piece: Piece, is_own: bool) -> str:
        own = piece.copies == "own" or is_own or piece.name in self._held.parted.own
        return own_name(piece.name, self._rank) if own and self._world > 1 else piece.name

    def _name_in(self, name: str, copies: str, saved: Mapping[str, Saved], ranks: int) -> str:
        """The tensor of the checkpoint for one of this rank: of a like rank, if it is own."""
        if copies == "own" and own_name(name, self._rank % ranks) in saved:
            return own_name(name, self._rank % ranks)
        if name not in saved and own_name(name, self._rank % ranks) in saved:
            return own_name(name, self._rank % ranks)  # it was own then
        return name

    def _saved_for_me(self, found: _native.Looked) -> dict[str, Saved]:
        """The tensors of the checkpoint, by the names that this rank has for them."""
        saved = _saved(found)
        end = own_name("", self._rank % len(found.rank_objects))
        mine = {name.removesuffix(end): info for name, info in saved.items()
                if name.endswith(end)}
        of_all = {name: info for name, info in saved.items() if plain_name(name) == name}
        return {**of_all, **mine}

    def _rules_of(self, key: str, thing: Any, rules: Mapping[str, Rule]) -> dict[str, Rule]:
        """An averaged model has running statistics, too, which each rank averages alone."""
        if self._world > 1 and isinstance(thing, Several):
            for name, one in thing.things.items():
                rules = self._rules_of(join(key, name), one, rules)
        rules = rules_inside(key, rules)
        if self._world == 1 or not isinstance(thing, nn.Module):
            return rules
        return {**rules, **{f"{key}.{name}": "own" for name in running_statistics(thing)}}

    def _is_own(self, holder: Holder) -> bool:
        if holder is self._hooks_holder:
            return True
        if holder.key != "data" or self._world == 1:
            return False
        rule = rule_for("data", self._rules)
        return rule == "own" if isinstance(rule, str) else self._data_is_own

    def _keeps_own_values(self, holder: Holder) -> bool:
        """True if this rank's plain values are saved beside those of rank 0."""
        return self._rank > 0 and rule_for(holder.key, self._rules) != "first"

    def _tree_of(self, holder: Holder, found: _native.Looked) -> Any:
        """What was saved of it; None if there is nothing, or it was of another kind."""
        if holder.key in self.other_things(found):
            return None
        if is_internal(holder.key):
            return self._internal_tree(holder, found)
        if not self._is_own(holder):
            trees = found.objects.get("things", {})
            if holder.key == "data" and "data" not in trees and len(found.rank_objects) > 1:
                raise ValueError(f"data: saved by each of {len(found.rank_objects)} ranks for "
                                 f"itself, and there are {self._world}; want "
                                 "holdfast.data.loader, whose position is the same for all")
            return self._chosen(holder, trees[holder.key], found) if holder.key in trees else None
        if len(found.rank_objects) != self._world:
            raise ValueError(f"data: its position is of {len(found.rank_objects)} ranks, and "
                             f"there are {self._world}; want as many, or holdfast.data.loader")
        own = found.rank_objects[self._rank].get("things", {})
        return own.get(holder.key, found.objects.get("things", {}).get(holder.key))

    def _internal_tree(self, holder: Holder, found: _native.Looked) -> Any:
        """Likewise, where a checkpoint may do without it, and then that is noted."""
        own = [rank.get("things", {}) for rank in found.rank_objects]
        first = found.objects.get("things", {}).get(holder.key)
        tree = None
        if holder is self._hooks_holder:
            tree = own[self._rank].get(holder.key) if len(own) == self._world else None
        elif first is not None and not self.other_optimizers(found):
            tree = self._chosen(holder, first, found)
        if tree is None and (holder.capture()[0] or any(holder.key in one for one in own)):
            self._notes[holder.key] = (f"{holder.key}: the checkpoint has none for this rank of "
                                       f"{self._world}, and it stays as it is")
        return tree

    def _chosen(self, holder: Holder, first: Any, found: _native.Looked) -> Any:
        """Its values for this rank; what is not surely right is noted."""
        trees = [own.get("things", {}).get(holder.key, first) for own in found.rank_objects]
        rules = {**self._rules, "data": self._rules.get("data", "equal")}
        unlike: list[str] = []
        chosen = choose(holder.key, trees, self._rank if len(trees) == self._world else None,
                        rules, unlike)
        if unlike:
            self._notes[holder.key] = (
                f"{_few(unlike)}: the {len(trees)} ranks that saved had different values, and "
                "those of rank 0 are taken")
        return chosen


def is_internal(key: str) -> bool:
    """True for an object that nobody has given: the name of a keyword has no dot."""
    return "." in key


def saved_extra(found: _native.Looked) -> list[str]:
    """Names of what modules kept beside tensors."""
    return names_of(_extra_trees(found))


def _forget_on_load(contents: Contents) -> None:
    """An optimizer that loads a state_dict puts new tensors in place of all it had."""
    ref = weakref.ref(contents)

    def forget(optimizer: torch.optim.Optimizer) -> None:
        live = ref()
        if live is not None:
            live.forget()

    for one in contents.optimizers:
        with contextlib.suppress(AttributeError):  # of what only looks like an optimizer
            one.register_load_state_dict_post_hook(forget)


def _saved(found: _native.Looked) -> dict[str, Saved]:
    saved = {}
    for info in found.tensors:
        for name in (info.name, *info.ties):
            saved[name] = Saved.of(info)
    return saved


def _extra_trees(found: _native.Looked) -> list[Any]:
    return [own.get("extra", {}) for own in found.rank_objects]


def _short(kinds: Mapping[str, str]) -> dict[str, str]:
    """Without modules: a class may be moved, and torch.cuda.amp has torch.amp's scaler."""
    return {key: kind.rpartition(".")[2] for key, kind in kinds.items()}


def _words(kinds: Mapping[str, str]) -> str:
    return " and ".join(f"a {kind}" for kind in kinds.values()) or "none"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _check_data(data: Any) -> None:
    if callable(getattr(data, "state_dict", None)):
        return
    kind = kind_of(data)
    if isinstance(data, torch.utils.data.DataLoader):
        raise TypeError(f"data: a {kind}, which does not know its position; want "
                        "holdfast.data.resumable(loader) around it, or holdfast.data.loader")
    raise TypeError(f"data: a {kind} without state_dict(); want holdfast.data.loader, "
                    "holdfast.data.resumable, or an iterable with state_dict and load_state_dict")
