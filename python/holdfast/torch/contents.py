"""All that a checkpoint of a training process holds, gathered and put back.

Tensors are pieces (pieces.py); the rest is plain objects, in two trees: what is the same on
all ranks, of which rank 0's is kept, and what is a rank's own (generators, the options of
the parameters that it holds, the extra state of its modules, the position of a loader that
differs by rank).
"""

import contextlib
import operator
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from holdfast import _native
from holdfast.arrays import describe_one
from holdfast.torch import generators as random_generators
from holdfast.torch.boxes import Rule
from holdfast.torch.ddp import running_statistics
from holdfast.torch.extra import ExtraState, names_of
from holdfast.torch.groups import merge_objects
from holdfast.torch.holders import Holder, Several, kind_of, kinds_of, together
from holdfast.torch.loader import Loader
from holdfast.torch.names import Renaming, by_key, join, own_name, plain_name
from holdfast.torch.parted import Differing, Parted
from holdfast.torch.pieces import Models, Optimizers, Piece, Saved, State
from holdfast.torch.watch import Versions

FORMAT = 1


@dataclass
class Captured:
    """One save, before it begins."""

    held: _native.Pieces
    owners: list[torch.Tensor]  # kept alive until their bytes are copied
    watched: Versions  # of what is copied in the background
    objects: dict[str, Any] = field(default_factory=dict)
    rank_objects: dict[str, Any] = field(default_factory=dict)
    versions: list[int] | None = None  # of what is watched

    def watch(self) -> None:
        """From now on it is noticed if tensors are written to."""
        self.versions = self.watched.now()

    def changed(self) -> list[str]:
        """Names of tensors that were written to since, as far as their versions tell."""
        return [] if self.versions is None else self.watched.changed(self.versions)


@dataclass
class _Joined:
    """Tensors of the model and its optimizers, and of objects with them."""

    state: _native.Pieces
    pieces: list[Piece]
    all: _native.Pieces

    def is_of(self, state: _native.Pieces, pieces: list[Piece]) -> bool:
        """True if it was made of the very same."""
        return (state is self.state and len(pieces) == len(self.pieces)
                and all(map(operator.is_, pieces, self.pieces)))


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
        self._models = [one for _, one in by_key(model)]
        self._state = State(model, optimizer, names=names, spec=spec)
        self._extra = ExtraState(model, names)
        self._data = data
        self._data_is_own = data is not None and getattr(data, "per_rank", True)
        rules = dict(spec or {})
        given = {key: together(key, thing) for key, thing in things.items() if thing is not None}
        self._thing_kinds = {key: kinds_of(thing) for key, thing in given.items()}
        self._holders = [Holder(key, thing, self._rules_of(key, thing, rules))
                         for key, thing in given.items()]
        if data is not None:
            _check_data(data)
            self._holders.append(Holder("data", data, rules))
        self._generators = dict(generators or {})
        # Refuses what it does not know; and what is slow the first time is done then.
        random_generators.capture(self._generators)
        self._at_once: set[str] = set()
        self._parted = Parted()
        # What was made of the pieces, for as long as they stay the same.
        self._made: tuple[list[Piece], _native.Pieces, Versions, list[Any]] | None = None
        self._joined: _Joined | None = None
        keyed = [] if optimizer is None else by_key(optimizer)
        self.optimizers = [one for _, one in keyed]
        self._kinds = {join("optimizer", key): kind_of(one) for key, one in keyed}
        self.parallel = f"{self._world} ranks"
        _forget_on_load(self)

    def held(self) -> _native.Pieces:
        """What this rank saves of the model and its optimizers, as the engine takes it."""
        return self._capture_state().held

    def capture(self) -> Captured:
        """All tensors, and the objects that may have some; they are not copied yet."""
        captured = self._capture_state()
        own = captured.rank_objects
        others: list[tuple[Piece, bool]] = []
        for holder in self._holders:
            tree, pieces = holder.capture()
            is_own = self._is_own(holder)
            trees = own if is_own else captured.objects
            trees.setdefault("things", {})[holder.key] = tree
            others += [(piece, is_own) for piece in pieces if self._saves(piece)]
        if self._extra.names:
            own["extra"], pieces = self._extra.capture()
            others += [(piece, True) for piece in pieces if self._saves(piece)]
        if others:
            self._add(captured, others)
        return captured

    def complete(self, captured: Captured) -> None:
        """Adds what has no tensors. It takes as long, and the copying has begun meanwhile."""
        captured.objects["format"] = FORMAT
        captured.objects["parted"] = self._parted.state()
        captured.objects["optimizers"] = dict(self._kinds)
        captured.objects["kinds"] = {key: dict(kinds) for key, kinds in self._thing_kinds.items()}
        captured.rank_objects["optimizer"] = self._state.objects(looked=True)
        captured.rank_objects["generators"] = random_generators.capture(self._generators)

    def copy_at_once(self, names: Iterable[str]) -> None:
        """These tensors are written to between updates: copied inside save() from now on."""
        self._at_once |= set(names)
        self._made = self._joined = None

    def part(self, found: Iterable[Differing]) -> None:
        """Ranks hold these tensors with different values, which were taken for equal ones."""
        self._parted.add(found)
        self._made = self._joined = None

    def take_parted(self, found: _native.Looked) -> None:
        """Tensors that were each rank's own in the checkpoint are that from now on, too."""
        self._parted = Parted.of(found) if self._world > 1 else Parted()
        self._made = self._joined = None

    def inexact(self, found: _native.Looked) -> list[str]:
        """Sentences about tensors of which a rank gets what another one had."""
        return Parted.of(found).sentences(len(found.rank_objects), self._world)

    def forget(self) -> None:
        """Lets go of tensors that may have been replaced: they would take memory until a save."""
        self._made = self._joined = None
        self._state.forget()

    def owns(self, optimizer: torch.optim.Optimizer) -> bool:
        """True if it updates parameters that are saved here: the first of a group tells."""
        return any(self._state.has(parameter) for group in optimizer.param_groups
                   for parameter in group["params"][:1])

    def expected(self) -> dict[str, Saved]:
        """Names that the model itself has, which a checkpoint of it must have too."""
        return {self._saved_name(piece): Saved(piece.tensor.dtype, tuple(piece.shape))
                for piece in self._state.pieces() if piece.kind in ("parameter", "buffer")}

    def has_any(self, found: _native.Looked) -> bool:
        """True if the checkpoint has a parameter or buffer of some rank."""
        saved = {plain_name(name) for name in _saved(found)}
        wanted = {plain_name(name) for name in self.expected()}
        return any(self.all_ranks(not wanted or bool(saved & wanted)))

    def known(self) -> set[str]:
        """Names of tensors, and of what tensors belong to: a parameter's slots, an object."""
        names = {name for entry in self._state.entries for name in (entry.name, *entry.aliases)}
        return names | self._state.slot_prefixes() | self.things | self._extra.names

    @property
    def things(self) -> set[str]:
        """Keys of the objects that are given."""
        return {holder.key for holder in self._holders}

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
        saved = _saved(found)
        ranks = len(found.rank_objects)
        held = []
        for holder in self._holders:
            tree = self._tree_of(holder, found)
            if tree is None:
                continue
            for piece in holder.make_room(tree, self._own_view(saved, ranks)):
                copies = "own" if self._is_own(holder) else piece.copies
                held.append(self._hold(piece, self._name_in(piece.name, copies, saved, ranks)))
        held += [self._hold(piece, piece.name)
                 for piece in self._extra.make_room(self._rank, _extra_trees(found), saved)]
        # Last, for it is what changes something, and the above may fail.
        if not self.other_optimizers(found):
            mine = self._own_view(saved, ranks)
            self._state.make_slots({name: info for name, info in mine.items()
                                    if name == plain_name(name)}, _optimizer_objects(found))
        for piece in self._state.pieces():
            name = self._name_in(piece.name, piece.copies, saved, ranks)
            if name in saved:
                held.append(self._hold(piece, name))
        return held

    def load(self, restored: _native.Restored, found: _native.Looked) -> None:
        """Gives the objects what was restored; the tensors are filled already."""
        if self.optimizers and not self.other_optimizers(found):
            self._state.load_objects(_optimizer_objects(found))
        for holder in self._holders:
            if self._tree_of(holder, found) is not None:
                holder.load()
        self._extra.load()

    def restore_generators(self, found: _native.Looked, report: Any) -> None:
        """When the loader's iterator exists, whose making draws from them."""
        if len(found.rank_objects) != self._world:
            report.inexact.append(f"generators: of {len(found.rank_objects)} ranks, and there "
                                  f"are {self._world}: they go on as they are")
            return
        saved = found.rank_objects[self._rank]["generators"]

        def restore() -> None:
            report.inexact.extend(random_generators.restore(saved, self._generators))

        if isinstance(self._data, Loader):
            self._data.after_iter = restore
        elif self._data is not None:
            _after_first_iter(self._data, self._models, restore)
        else:
            restore()

    # Names

    def _saves(self, piece: Piece) -> bool:
        if piece.name in self._parted.elsewhere:
            return False
        if piece.copies != "first":
            return True
        entry = self._state.entry(piece.name)
        group = entry.ddp.process_group if entry is not None and entry.ddp is not None else None
        return (dist.get_rank(group) if group is not None else self._rank) == 0

    def _saved_name(self, piece: Piece) -> str:
        own = piece.copies == "own" or piece.name in self._parted.own
        return own_name(piece.name, self._rank) if own else piece.name

    def _thing_name(self, piece: Piece, is_own: bool) -> str:
        own = piece.copies == "own" or is_own or piece.name in self._parted.own
        return own_name(piece.name, self._rank) if own and self._world > 1 else piece.name

    def _name_in(self, name: str, copies: str, saved: Mapping[str, Saved], ranks: int) -> str:
        """The tensor of the checkpoint for one of this rank: of a like rank, if it is own."""
        if copies == "own" and own_name(name, self._rank % ranks) in saved:
            return own_name(name, self._rank % ranks)
        if name not in saved and own_name(name, self._rank % ranks) in saved:
            return own_name(name, self._rank % ranks)  # it was own then
        return name

    def _own_view(self, saved: Mapping[str, Saved], ranks: int) -> dict[str, Saved]:
        """Tensors that are this rank's own, by the names that its objects have for them."""
        end = own_name("", self._rank % ranks)
        mine = {name.removesuffix(end): info for name, info in saved.items()
                if name.endswith(end)}
        return {**saved, **mine}

    def _rules_of(self, key: str, thing: Any, rules: Mapping[str, Rule]) -> dict[str, Rule]:
        """An averaged model has running statistics, too, which each rank averages alone."""
        if self._world > 1 and isinstance(thing, Several):
            for name, one in thing.things.items():
                rules = self._rules_of(join(key, name), one, rules)
        if self._world == 1 or not isinstance(thing, nn.Module):
            return dict(rules)
        return {**rules, **{f"{key}.{name}": "own" for name in running_statistics(thing)}}

    def _is_own(self, holder: Holder) -> bool:
        return holder.key == "data" and self._data_is_own and self._world > 1

    def _tree_of(self, holder: Holder, found: _native.Looked) -> Any:
        """What was saved of it; None if there is nothing, or it was of another kind."""
        if holder.key in self.other_things(found):
            return None
        if not self._is_own(holder):
            trees = found.objects.get("things", {})
            if holder.key == "data" and "data" not in trees and len(found.rank_objects) > 1:
                raise ValueError(f"data: saved by each of {len(found.rank_objects)} ranks for "
                                 f"itself, and there are {self._world}; want "
                                 "holdfast.data.loader, whose position is the same for all")
            return trees.get(holder.key)
        if len(found.rank_objects) != self._world:
            raise ValueError(f"data: its position is of {len(found.rank_objects)} ranks, and "
                             f"there are {self._world}; want as many, or holdfast.data.loader")
        own = found.rank_objects[self._rank].get("things", {})
        return own.get(holder.key, found.objects.get("things", {}).get(holder.key))

    # Pieces for the engine

    def _capture_state(self) -> Captured:
        pieces = self._state.pieces()
        if self._made is None or self._made[0] is not pieces:
            mine = [piece for piece in pieces if self._saves(piece)]
            watched = Versions({self._saved_name(p): p.outer for p in mine
                                if p.outer is not None and not self._copied_at_once(p)})
            held = _native.Pieces([self._hold(p, self._saved_name(p)) for p in mine])
            self._made = (pieces, held, watched, [piece.tensor for piece in mine])
        _, held, watched, owners = self._made
        return Captured(held, owners, watched)

    def _add(self, captured: Captured, others: list[tuple[Piece, bool]]) -> None:
        """Tensors of objects, which may change at any time; and whether they are a rank's own."""
        pieces = [piece for piece, _ in others]
        if self._joined is None or not self._joined.is_of(captured.held, pieces):
            more = [self._hold(piece, self._thing_name(piece, is_own), at_once=True)
                    for piece, is_own in others]
            self._joined = _Joined(captured.held, pieces, captured.held.plus(more))
        captured.held = self._joined.all
        captured.owners = captured.owners + [piece.tensor for piece in pieces]

    def _copied_at_once(self, piece: Piece) -> bool:
        return piece.at_once or self._saved_name(piece) in self._at_once

    def _hold(self, piece: Piece, name: str, at_once: bool = False) -> _native.HeldPiece:
        aliases = piece.aliases
        if name != piece.name and name == own_name(piece.name, self._rank):
            aliases = tuple(own_name(alias, self._rank) for alias in aliases)
        array = describe_one(name, piece.tensor, aliases)
        return _native.HeldPiece(array, list(piece.shape), piece.box,
                                 at_once or piece.at_once or name in self._at_once)


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


def _optimizer_objects(found: _native.Looked) -> dict[str, Any]:
    return merge_objects(own["optimizer"] for own in found.rank_objects)


def _extra_trees(found: _native.Looked) -> list[Any]:
    return [own.get("extra", {}) for own in found.rank_objects]


def _short(kinds: Mapping[str, str]) -> dict[str, str]:
    """Without modules: a class may be moved, and torch.cuda.amp has torch.amp's scaler."""
    return {key: kind.rpartition(".")[2] for key, kind in kinds.items()}


def _words(kinds: Mapping[str, str]) -> str:
    return " and ".join(f"a {kind}" for kind in kinds.values()) or "none"


def _check_data(data: Any) -> None:
    if callable(getattr(data, "state_dict", None)):
        return
    kind = kind_of(data)
    if isinstance(data, torch.utils.data.DataLoader):
        raise TypeError(f"data: a {kind}, which does not know its position; want "
                        "holdfast.data.resumable(loader) around it, or holdfast.data.loader")
    raise TypeError(f"data: a {kind} without state_dict(); want holdfast.data.loader, "
                    "holdfast.data.resumable, or an iterable with state_dict and load_state_dict")


def _after_first_iter(data: Any, models: Iterable[nn.Module], call: Callable[[], None]) -> None:
    """Once, when the loader's iterator exists: what the next epoch's draws is kept then.

    A generator draws later than that; for it, and for a loader that is read in another way,
    before the first forward pass.
    """
    kind, left = type(data), [call]

    def once() -> None:
        if left:
            left.pop()()

    def make_iterator(self: Any) -> Any:
        self.__class__ = kind
        made = kind.__iter__(self)
        if not isinstance(made, GeneratorType):
            once()
        return made

    _before_first_forward(models, once)
    with contextlib.suppress(TypeError):  # some classes cannot be changed
        data.__class__ = type(kind.__name__, (kind,), {"__iter__": make_iterator})


def _before_first_forward(models: Iterable[nn.Module], call: Callable[[], None]) -> None:
    """Once, before whichever model is first called."""
    hooks: list[Any] = []

    def once(module: nn.Module, args: Any) -> None:
        while hooks:
            hooks.pop().remove()
        if called:
            return
        called.append(True)
        call()

    called: list[bool] = []
    for model in models:
        module = model if isinstance(model, nn.Module) else getattr(model, "submod", None)
        if isinstance(module, nn.Module):
            hooks.append(module.register_forward_pre_hook(once))
