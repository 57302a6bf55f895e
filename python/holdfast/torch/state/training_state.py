"""All that a checkpoint of a training process holds: how it is gathered, and how it comes back.

Tensors are pieces (tensor_state.py). The rest is plain objects, in two trees: one of rank 0, for
all ranks, and one of each rank, with what is its own: generators, the options of the parameters
that it holds, the extra state of its modules, the position of a loader that differs by rank, and
the values of objects on all ranks but rank 0, which may differ from rank 0's (rank_values.py).
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from holdfast import _native
from holdfast.options import Layout
from holdfast.torch.data.loaders import Loaders
from holdfast.torch.state import active_adapters, ddp_comm_hooks, diverged_replicas, gradients
from holdfast.torch.state.active_adapters import ActiveAdapters
from holdfast.torch.state.capture import Captured, TensorCapture
from holdfast.torch.state.diverged_replicas import DivergedReplicas, Divergence
from holdfast.torch.state.empty_buffers import saved_empty, saved_resized
from holdfast.torch.state.extra_state import ExtraState, differing_extra_states
from holdfast.torch.state.given import check_given
from holdfast.torch.state.live_buffers import LiveBuffers
from holdfast.torch.state.model_tensors import Exclude, inexact_strides
from holdfast.torch.state.module_names import by_key
from holdfast.torch.state.object_groups import generators_in, holds_only_generators
from holdfast.torch.state.optimizer_states import is_inner
from holdfast.torch.state.param_groups import merge_optimizer_objects
from holdfast.torch.state.peer_state import PeerState
from holdfast.torch.state.peer_step import CarriedStep
from holdfast.torch.state.piece import Piece
from holdfast.torch.state.saved_generators import SavedGenerators, inexact_generators
from holdfast.torch.state.saved_names import (
    extra_trees,
    forget_on_load,
    name_in,
    saved_extra_names,
    saved_for_rank,
    saved_tensors,
)
from holdfast.torch.state.stateful import Stateful
from holdfast.torch.state.stateful_objects import StatefulObjects, is_internal
from holdfast.torch.state.tensor_state import Models, Optimizers, TensorState
from holdfast.torch.state.weights_file import load_weights
from holdfast.torch.values import generators as random_generators
from holdfast.torch.values.all_ranks import all_ranks
from holdfast.torch.values.dotted_names import name_a_few, plain_name
from holdfast.torch.values.dtypes import SavedTensor

FORMAT = 1  # the version of what a checkpoint keeps as objects
BRANCH = "branch"  # the key of what led to the checkpoint


class TrainingState:
    """The state of this process, as a Checkpointer was given it."""

    def __init__(
        self,
        model: Models,
        optimizer: Optimizers | None,
        objects: Mapping[str, Any],
        data: Any,
        layout: Layout,
        exclude: Exclude = (),
    ) -> None:
        self.data = Loaders(data)
        check_given(model, optimizer)
        several = dist.is_available() and dist.is_initialized()
        self._group = layout.group
        self.rank = self._rank = dist.get_rank(layout.group) if several else 0
        self.world = self._world = dist.get_world_size(layout.group) if several else 1
        self.models = [one for _, one in by_key(model)]
        self._adapters = ActiveAdapters(self.models)
        keyed = [] if optimizer is None else by_key(optimizer)
        self.optimizers = [one for _, one in keyed]
        given = {path: one for name, thing in objects.items()
                 for path, one in generators_in(name, thing).items()}
        others = {name: one for name, one in objects.items() if not holds_only_generators(one)}
        self._objects = StatefulObjects(model, keyed, others, self.data, layout.rules or {},
                                        self._rank, self._world)
        self._tensors = TensorState(model, optimizer, names=layout.names, rules=layout.rules,
                                    exclude=exclude,
                                    averages_statistics=self._objects.average_statistics)
        self._capture = TensorCapture(self._tensors.pieces, self._tensors.ddp_group, self._rank,
                                      self._world)
        self._extra = ExtraState(model, layout.names)
        self.random = SavedGenerators(given, by_key(model), self.data, objects)
        self.generators, self.found, self.unsaved = self.random.dicts
        self.data.use_generators(self.generators)
        random_generators.capture(self.generators)  # done here because it is slow the first time
        self._notes: dict[str, str] = {}  # why what is restored may not be exactly right
        self._pending: Stateful | None = None  # gradients that are being restored
        # How other ranks see the state.
        self.peers = PeerState(self._tensors, self._capture, self._objects, self.generators,
                               LiveBuffers(self.models), self.data)
        self.parallel = f"{self._world} ranks"
        self.branch: dict[str, Any] = {}  # what led to the state (loop/branch.py), to be saved
        self.on_forget: list[Callable[[], None]] = []  # called by forget()
        forget_on_load(self)

    # Saving

    def tensor_pieces(self) -> _native.Pieces:
        """What this rank saves of the model and its optimizers, as the engine takes it."""
        return self._capture.capture().pieces

    def capture(self, *, with_gradients: bool = False) -> Captured:
        """All tensors, and the objects that may hold tensors. Nothing is copied yet.

        `with_gradients` adds the gradients that wait for an update.
        """
        captured = self._capture.capture()
        others = self._capture_objects(captured)
        own = captured.rank_objects
        if self._extra.all_names:
            own["extra"], pieces = self._extra.capture()
            others += [(piece, True) for piece in pieces if self._capture.saves(piece)]
        if with_gradients:
            own[gradients.KEY], pieces = Stateful(gradients.KEY, self.gradients()).capture()
            others += [(piece, True) for piece in pieces]
        if others:
            self._capture.add(captured, others)
        if with_gradients:
            self._capture.forget_objects()  # else gradients stay in memory until the next save
        return captured

    def _capture_objects(self, captured: Captured) -> list[tuple[Piece, bool]]:
        """Adds the plain values of objects; returns their tensors, and whether they are own."""
        others: list[tuple[Piece, bool]] = []
        for one in self._objects.to_save:
            tree, pieces = one.capture()
            is_own = self._objects.is_rank_own(one)
            if is_internal(one.key) and not tree:
                continue
            if not is_own:
                captured.objects.setdefault("things", {})[one.key] = tree
            if is_own or self._objects.saves_own_values(one):
                captured.rank_objects.setdefault("things", {})[one.key] = tree
            others += [(piece, is_own) for piece in pieces if self._capture.saves(piece)]
        averaged = self._objects.average_buffers
        captured.averaged = [piece for piece, _ in others if piece.name in averaged] if averaged else []
        return others

    def gradients(self) -> gradients.Gradients:
        """The gradients, as an object with a state_dict."""
        return gradients.Gradients({entry.name: entry.kept for entry in self._tensors.entries
                                    if entry.is_parameter}, self.models)

    def add_plain_values(self, captured: Captured) -> None:
        """Adds what holds no tensors. Called while the tensors are already being copied."""
        captured.objects["format"] = FORMAT
        captured.objects[BRANCH] = self.branch
        captured.objects["parted"] = self._capture.diverged.state()
        if "peft" in sys.modules and (adapters := self._adapters.names()):
            captured.objects[active_adapters.KEY] = adapters
        captured.objects.update(self._objects.kinds())
        captured.rank_objects["optimizer"] = self._tensors.objects(looked=True)
        captured.rank_objects.update(self._tensors.peculiarities())
        if captured.averaged:
            read = diverged_replicas.read_by_averages(self._tensors.pieces(), captured.averaged)
            captured.rank_objects[diverged_replicas.BUFFER_SEALS] = self._capture.seals_of(captured.averaged + read)
        self.random.look()
        self.random.warn()
        captured.rank_objects.update(self.random.capture())
        self.data.stop_restoring()
        captured.rank_objects["data draws"] = self.data.draws

    def model_tensors(self) -> dict[str, torch.Tensor]:
        """The parameters and buffers of the model, by name."""
        return {piece.name: piece.outer for piece in self._tensors.pieces()
                if piece.kind in ("parameter", "buffer") and piece.outer is not None}

    def parameters(self) -> dict[str, torch.Tensor]:
        """The parameters of the model, by name."""
        return {piece.name: piece.outer for piece in self._tensors.pieces()
                if piece.kind == "parameter" and piece.outer is not None}

    def pieces(self) -> list[Piece]:
        """The parameters, buffers and slots that this process holds, as they are now."""
        return self._tensors.pieces()

    def resting(self) -> list[tuple[Piece, str]]:
        """Parameters and slots, which nothing writes to between updates, with their saved names."""
        return [(piece, self._capture.saved_name(piece)) for piece in self._tensors.pieces()
                if piece.kind in ("parameter", "slot")]

    def saved_pieces(self) -> list[tuple[Piece, str]]:
        """All that this rank saves, and the names that it has in a checkpoint."""
        made = [(piece, self._capture.saved_name(piece)) for piece in self._tensors.pieces()
                if self._capture.saves(piece)]
        others = [(piece, self._objects.is_rank_own(one)) for one in self._objects.to_save
                  for piece in one.capture()[1]]
        if self._extra.all_names:
            others += [(piece, True) for piece in self._extra.capture()[1]]
        return made + [(piece, self._capture.object_name(piece, is_own)) for piece, is_own in others
                       if self._capture.saves(piece)]

    def copy_at_once(self, names: Iterable[str], not_more: Iterable[str] = ()) -> None:
        """From now on, save() itself copies these tensors: something writes to them later.

        Those of `not_more` are copied beside the training again.
        """
        self._capture.copy_at_once(names, not_more)

    def mark_diverged(self, found: Iterable[Divergence]) -> None:
        """From now on, these tensors, which ranks were to hold alike, are each rank's own."""
        self._capture.mark_diverged(found)
        self.peers.forget()  # they have other names now

    def forget(self) -> None:
        """Lets go of tensors that may have been replaced, so that their memory can be freed."""
        self.peers.forget()
        self._capture.forget()
        self._tensors.forget()
        for call in self.on_forget:
            call()

    def owns(self, optimizer: torch.optim.Optimizer) -> bool:
        """True if the optimizer updates parameters that are saved here.

        The first parameter of each group decides.
        """
        return any(self._tensors.has(parameter) for group in optimizer.param_groups
                   for parameter in group["params"][:1])

    @property
    def loader(self) -> Loaders | None:
        """The loaders that this process reads; None if there are none, or one is not Holdfast's."""
        return self.data if self.data.are_own else None

    def describe(self, pieces: list[tuple[Piece, str]]) -> list[_native.Piece]:
        """The pieces as the engine takes them."""
        return [self._capture.describe(piece, name) for piece, name in pieces]

    # Comparing with a checkpoint

    def load_diverged(self, found: _native.SavedStep) -> None:
        """Tensors that were each rank's own in the checkpoint are each rank's own here, too."""
        several = self._world > 1
        self._capture.diverged = DivergedReplicas.of(found) if several else DivergedReplicas()
        self._capture.forget()
        self.peers.forget()

    def inexact_replicas(self, found: _native.SavedStep) -> list[str]:
        """Sentences about tensors of which a rank gets what another rank had."""
        diverged = DivergedReplicas.of(found)
        return [*diverged.sentences(len(found.rank_objects), self._world),
                *diverged_replicas.differing_buffers(found.rank_objects, diverged.own)]

    def expected(self, found: _native.SavedStep | None = None) -> dict[str, SavedTensor]:
        """The parameters and buffers of the model, which a checkpoint of it must have.

        Given a checkpoint, a buffer has the shape that it has there, if its module loads it so.
        """
        reshaped = {} if found is None else self._tensors.reshaped(saved_for_rank(found, self._rank),
                                                                        saved_resized(found))
        gone = set() if found is None else saved_empty(found)
        return {self._capture.saved_name(piece): reshaped.get(
                    piece.name, SavedTensor(piece.tensor.dtype, tuple(piece.shape)))
                for piece in self._tensors.pieces()
                if piece.kind in ("parameter", "buffer") and piece.name not in gone}

    def has_any(self, found: _native.SavedStep) -> bool:
        """True if the checkpoint has a parameter or buffer of some rank. A collective call."""
        saved = {plain_name(name) for name in saved_tensors(found)}
        wanted = {plain_name(name) for name in self.expected()}
        return any(self.all_ranks(not wanted or bool(saved & wanted)))

    def known_names(self) -> set[str]:
        """Names of tensors, and what names of tensors begin with: parameters, objects."""
        names = {name for entry in self._tensors.all_entries
                 for name in (entry.name, *entry.aliases)}
        names |= {one.key for one in self._objects.without_hooks}
        names |= {ddp_comm_hooks.KEY, gradients.KEY, *self._tensors.empty}
        return names | self._tensors.slot_prefixes() | self._extra.all_names

    def optimized(self) -> list[list[str]]:
        """The parameters that optimizers have, each by all its names ("optimizer.<parameter>")."""
        return self._tensors.optimized()

    @property
    def object_keys(self) -> set[str]:
        """The keys of the objects that the Checkpointer was given."""
        return self._objects.keys

    def missing_extra(self, found: _native.SavedStep) -> list[str]:
        """Names of extra state of modules that the checkpoint does not have."""
        return sorted(self._extra.names - set(saved_extra_names(found)))

    def other_kinds(self, found: _native.SavedStep) -> list[str]:
        """Sentences about optimizers and objects of another class than in the checkpoint."""
        return [*self._objects.other_optimizers(found),
                *self._objects.other_objects(found).values()]

    def all_ranks(self, value: Any) -> list[Any]:
        """The values that all ranks pass, by rank. A collective call."""
        return all_ranks(value, self._group)

    # Restoring

    def allocate(self, found: _native.SavedStep) -> list[_native.Piece]:
        """Memory for all that is in the checkpoint, as pieces to fill."""
        return self.describe(self.allocate_all(found))

    def allocate_all(self, found: _native.SavedStep) -> list[tuple[Piece, str]]:
        """Memory for all that is in the checkpoint, and the names that it has there."""
        saved, mine = saved_tensors(found), saved_for_rank(found, self._rank)
        ranks = len(found.rank_objects)
        like = self._rank % ranks  # the rank whose own tensors this one gets
        self._notes, self._objects.notes = {}, {}
        to_fill = []
        for one in self._objects.to_restore:
            tree = self._objects.saved_tree(one, found)
            if tree is None:
                continue
            for piece in one.allocate(tree, mine):
                copies = "own" if self._objects.is_rank_own(one) else piece.copies
                to_fill.append((piece, name_in(saved, piece.name, copies, like)))
        tree = self._gradient_tree(found)
        self._pending = None if tree is None else Stateful(gradients.KEY, self.gradients())
        if self._pending is not None:
            to_fill += [(piece, name_in(saved, piece.name, "own", like))
                        for piece in self._pending.allocate(tree, mine)]
        self._allocate_slots(found, mine)  # after all that may fail: it changes the optimizers
        for piece in self._tensors.pieces():
            name = name_in(saved, piece.name, piece.copies, like)
            if name in saved:
                to_fill.append((piece, name))
        if ranks != self._world:
            self._note_own([piece.name for piece, name in to_fill if name != piece.name], found)
        extra = self._extra.allocate(self._rank, extra_trees(found), saved)
        return to_fill + [(piece, piece.name) for piece in extra]

    def _allocate_slots(self, found: _native.SavedStep, mine: Mapping[str, SavedTensor]) -> None:
        objects = None
        if not self._objects.other_optimizers(found):
            objects = self._optimizer_objects(found)
            self._tensors.check_options(objects)
        self._tensors.reshape(mine, saved_empty(found), saved_resized(found))
        if objects is not None:
            self._tensors.allocate_slots(mine, objects)

    def _note_own(self, tensors: list[str], found: _native.SavedStep) -> None:
        """Notes what this rank gets from another one, because the number of ranks has changed."""
        names = [*tensors, *differing_extra_states(extra_trees(found))]
        if names:
            self._notes["own"] = (f"{name_a_few(names)}: each of {len(found.rank_objects)} ranks saved "
                                  "its own, and this rank takes those of one of them")

    def load(self, found: _native.SavedStep, *, keep: bool = False) -> None:
        """Gives the objects what was saved of them; the tensors are filled already.

        With `keep`, load_again() can be called.
        """
        self.load_optimizers(found)
        for one in self._objects.without_hooks:
            if self._objects.saved_tree(one, found) is not None:
                self._objects.load(one, keep=keep)
        self._extra.load()
        if self._extra.not_loaded:
            self._notes["extra"] = (f"{name_a_few(self._extra.not_loaded)}: from a state_dict of "
                                    "the module's own, which did not load it from the checkpoint")

    def load_optimizers(self, found: _native.SavedStep) -> None:
        """Gives the optimizers what was saved of them; the tensors are filled already."""
        self._tensors.forget_gradients()
        if self.optimizers and not self._objects.other_optimizers(found):
            objects = self._optimizer_objects(found)
            self._note_inner(self._tensors.load_objects(objects))
            self._tensors.remove_unsaved(saved_for_rank(found, self._rank), objects)

    def _note_inner(self, missing: list[str]) -> None:
        """Notes that the checkpoint has nothing of an optimizer inside another one."""
        if names := [name for name in missing if is_inner(name)]:
            self._notes["inner"] = (f"{name_a_few(names)}: the state of an optimizer inside another "
                                    "one, which an earlier version of Holdfast did not save, "
                                    "begins anew")

    def load_again(self, found: _native.SavedStep) -> None:
        """Gives the objects again what load() gave them, all but the loader."""
        if self.optimizers:
            self._tensors.load_objects(self._optimizer_objects(found))
        for one in self._objects.without_hooks:
            if one.key != "data":
                one.load_again()

    def reload_plain_values(self) -> list[str]:
        """Loads the values of objects without tensors into them; names those that then differ."""
        return [one.key for one in self._objects.without_hooks
                if one.key != "data" and not one.survives_reload()]

    def load_weights(self, path: str, *, strict: bool) -> None:
        """Fills the model from a file or another run (weights_file.py). A collective call."""
        load_weights(self._tensors, path, strict=strict)

    def load_gradients(self) -> None:
        """Restores gradients that waited for an update. Last: DDP rebuilds buckets without any."""
        if self._pending is not None:
            self._pending.load()
            self._pending = None

    def _gradient_tree(self, found: _native.SavedStep) -> Any:
        if len(found.rank_objects) != self._world:
            return None
        return found.rank_objects[self._rank].get(gradients.KEY)

    def restore_generators(self, found: _native.SavedStep, inexact: list[str]) -> None:
        """Restores the random generators, now or when the loader's iterator exists.

        Making that iterator draws from the generators. The communication hooks get their state
        here, too: DDP rebuilt its buckets just now, in a pass that its hooks have seen. Adds to
        `inexact` why the run may differ in bits from now on.
        """
        self._restore_comm_hooks(found)
        inexact += [*self._objects.notes.values(), *self._notes.values()]
        if isinstance(found, CarriedStep):
            return found.restore_generators(inexact, self.generators)
        if len(found.rank_objects) != self._world:
            inexact.append(f"generators: {len(found.rank_objects)} ranks saved theirs, and now there "
                           f"are {self._world}: none is restored, so random numbers differ")
            return
        own = found.rank_objects[self._rank]
        inexact += [*inexact_generators(own), *inexact_strides(self._tensors.entries, own)]

        def restore() -> None:
            inexact.extend(line for line in self.random.restore(own["generators"]) if line not in inexact)

        self.random.late_draws.resumed(own["generators"], own.get("late draws", []), inexact)
        inexact += self.data.restore_after_iter(restore, own.get("data draws"))

    def _restore_comm_hooks(self, found: _native.SavedStep) -> None:
        hooks = self._objects.hooks_stateful
        if self._objects.saved_tree(hooks, found) is not None:
            hooks.load()
        if unsaved := self._objects.comm_hooks.unsaved():
            self._notes["unsaved"] = (f"{name_a_few(unsaved)}: belongs to a communication hook, "
                                      "and cannot be stored; expected a state_dict() and "
                                      "load_state_dict()")

    def _optimizer_objects(self, found: _native.SavedStep) -> dict[str, Any]:
        ranks = [own["optimizer"] for own in found.rank_objects]
        merged = merge_optimizer_objects(ranks, self._rank if len(ranks) == self._world else None)
        if merged["differ"]:
            self._notes["optimizer"] = (
                f"{name_a_few(merged['differ'])}: the {len(ranks)} ranks that saved had different "
                "hyper-parameters, and those of the first are taken")
        return merged
