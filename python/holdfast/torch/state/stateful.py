"""Objects with a state_dict (schedulers, scalers, averages, loaders) in a checkpoint.

Their plain values become a tree of objects, and their tensors pieces named by key and path. On
the way back, memory is allocated for the tensors and filled, and load_state_dict() gets the whole:

    tree, pieces = stateful.capture()
    pieces = stateful.allocate(tree, saved)   # in another process; then fill the pieces
    stateful.load()
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from holdfast.torch.state.empty_states import EmptyState
from holdfast.torch.state.object_groups import (
    Fields,
    StatefulGroup,
    check_stateful,
    class_name,
    load_into,
    state_of,
    unlike,
)
from holdfast.torch.state.piece import Piece, piece_of
from holdfast.torch.values.boxes import Rule, part_by_rule, rule_for
from holdfast.torch.values.dtypes import SavedTensor
from holdfast.torch.values.trees import memory_of, pack, tensor_names_in, unpack

_log = logging.getLogger("holdfast")

VALUES = "values"  # the key of PlainValues; a checkpoint that was saved before there were such values lacks it


class Stateful:
    """One object with state_dict() and load_state_dict(), known by its key."""

    def __init__(self, key: str, thing: Any, rules: Mapping[str, Rule] | None = None) -> None:
        check_stateful(key, thing)
        self.key = key
        self._thing = thing
        self._rules = dict(rules or {})
        self._known: dict[str, tuple[tuple[Any, ...] | None, Piece | None]] = {}
        self._allocated: tuple[Any, dict[str, torch.Tensor]] | None = None
        self._loaded: tuple[Any, dict[str, torch.Tensor]] | None = None  # for load_again()
        # Set for objects of the user's, whose empty state_dict() may be an oversight.
        self.empty: EmptyState | None = None
        self.unlike: list[str] = []  # what load() could not restore as it was

    def capture(self) -> tuple[Any, list[Piece]]:
        """The object's plain values and its tensors as they are now. Nothing is copied."""
        state = state_of(self._thing)
        if self.empty is None and type(state) is dict and not state:  # most of Holdfast's own
            self._known = {}
            return {}, []
        packed = pack(state, self.key)
        if self.empty is not None and self.empty.look(self._thing, packed.tree):
            _log.warning("%s: its state_dict() is empty, and it holds something: nothing of it is "
                         "saved; expected a state_dict() with what a resumed run needs", self.key)
        return packed.tree, self._pieces(packed.tensors)

    def allocate(self, tree: Any, saved: Mapping[str, SavedTensor]) -> list[Piece]:
        """Memory for the tensors of a captured tree, as pieces to fill.

        A tensor that the object has as a DTensor becomes a DTensor that is cut alike. ValueError
        names a tensor that is not in the checkpoint.
        """
        live = pack(state_of(self._thing), self.key).tensors
        tensors: dict[str, torch.Tensor] = {}
        for name in tensor_names_in(tree):
            if name not in saved:
                raise ValueError(f"{name}: not in the checkpoint; expected it, as {self.key} "
                                 "names it")
            tensors[name] = self._empty_tensor(name, saved[name], live.get(name))
        self._allocated = (tree, tensors)
        return self._pieces(tensors)

    def load(self, *, keep: bool = False) -> None:
        """Gives the object its state, after the pieces of allocate() are filled.

        With `keep`, load_again() can be called, once.
        """
        if self._allocated is None:
            raise ValueError(f"{self.key}: nothing to load; expected allocate() first")
        tree, tensors = self._allocated
        self._allocated, self._known = None, {}
        if keep:
            kept = {name: one.detach().clone() for name, one in tensors.items()}
            self._loaded = (tree, kept)
        stand_ins: list[str] = []
        load_into(self._thing, unpack(tree, tensors, stand_ins=stand_ins))
        self.unlike = [*unlike(self._thing), *(
            f"{self.key}: holds a {name}, which this process does not have with the same fields: a "
            "stand-in takes its place" for name in stand_ins)]

    def load_again(self) -> None:
        """Gives the object the state that load() gave it, if it did."""
        loaded, self._loaded, self._known = self._loaded, None, {}
        if loaded is not None:
            load_into(self._thing, unpack(*loaded))

    def give(self, tree: Any, tensors: Mapping[str, torch.Tensor]) -> None:
        """Gives the object the state of a captured tree with these tensors."""
        self._known = {}
        load_into(self._thing, unpack(tree, tensors))

    def survives_reload(self) -> bool:
        """False if the object's plain values cannot be loaded into it, or are not what it then has.

        An object with tensors is not loaded, because that would need memory for all of them.
        """
        packed = pack(state_of(self._thing), self.key)
        if packed.tensors:
            return True
        try:
            load_into(self._thing, unpack(packed.tree, {}))
        except Exception:  # of the user's load_state_dict()
            return False
        return repr(pack(state_of(self._thing), self.key).tree) == repr(packed.tree)

    def _pieces(self, tensors: Mapping[str, torch.Tensor]) -> list[Piece]:
        # Only the tensors of this call are remembered: others would be kept alive.
        self._known = {name: self._known_piece(name, tensor) for name, tensor in tensors.items()}
        return [piece for _, piece in self._known.values() if piece is not None]

    def _known_piece(self, name: str,
                     tensor: torch.Tensor) -> tuple[tuple[Any, ...], Piece | None]:
        """The tensor's memory, and the piece of the last call if that memory is the same."""
        memory = memory_of(tensor)
        known, piece = self._known.get(name, (None, None))
        return memory, piece if memory == known else piece_of(name, tensor, self._rules)

    def _empty_tensor(self, name: str, info: SavedTensor,
                      live: torch.Tensor | None) -> torch.Tensor:
        if isinstance(live, DTensor) and tuple(live.shape) == info.shape:
            return torch.empty_like(live, dtype=info.dtype, requires_grad=False)
        rule = rule_for(name, self._rules)
        shape = info.shape
        if rule is not None:
            shape = tuple(part_by_rule(shape, rule, name, is_whole=True).box.shape)
        return torch.empty(shape, dtype=info.dtype)


def class_names(thing: Any) -> dict[str, str]:
    """The class name of an object, or those of the members of a group, by name.

    Every module is called "module": wrappers and FSDP change its class, and the names of its
    tensors tell more.
    """
    members = thing.members if isinstance(thing, StatefulGroup) else {"": thing}
    members = {name: one.thing if isinstance(one, Fields) else one for name, one in members.items()}
    return {name: "module" if isinstance(one, nn.Module) else class_name(one)
            for name, one in members.items()}


class PlainValues(dict[str, Any]):
    """The plain values of a training that are saved with it: `Checkpointer.values`, a dict with a state_dict.

    What it holds before the first resume are defaults: a value that a checkpoint does not have
    gets its default, and one without a default is removed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._defaults: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The values as they are now."""
        return dict(self)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Replaces the values."""
        self.replace({**(self._defaults or {}), **saved})

    def before_resume(self) -> None:
        """Notes the defaults, at the first call."""
        if self._defaults is None:
            self._defaults = dict(self)

    def replace(self, values: Mapping[str, Any]) -> None:
        """Takes these values and drops all others."""
        kept = dict(values)
        self.clear()
        self.update(kept)
