"""Objects with a state_dict (schedulers, scalers, averages, loaders) in a checkpoint.

Their plain values become a tree of objects, their tensors pieces named by key and path. On
the way back, room is made for the tensors, it is filled, and load_state_dict() gets the
whole:

    tree, pieces = holder.capture()
    pieces = holder.make_room(tree, saved)   # in another process; then fill the pieces
    holder.load()
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.tensor import DTensor

from holdfast.torch.state.piece import Piece, piece_of
from holdfast.torch.values.boxes import Rule, declared, rule_for
from holdfast.torch.values.dtypes import Saved
from holdfast.torch.values.trees import memory_of, names_in, pack, unpack


class Holder:
    """One such object, known by its key."""

    def __init__(self, key: str, thing: Any, rules: Mapping[str, Rule] | None = None) -> None:
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(thing, method, None)):
                raise TypeError(f"{key}: a {kind_of(thing)} without {method}(), want one with "
                                "state_dict() and load_state_dict()")
        self.key = key
        self._thing = thing
        self._rules = dict(rules or {})
        self._known: dict[str, tuple[tuple[Any, ...] | None, Piece | None]] = {}
        self._room: tuple[Any, dict[str, torch.Tensor]] | None = None

    def capture(self) -> tuple[Any, list[Piece]]:
        """Its plain values and its tensors as they are now; nothing is copied."""
        packed = pack(_state_of(self._thing), self.key)
        return packed.tree, self._pieces(packed.tensors)

    def make_room(self, tree: Any, saved: Mapping[str, Saved]) -> list[Piece]:
        """Memory for the tensors of a captured tree, as pieces to fill.

        A tensor that the object has as a DTensor becomes one that is cut alike. ValueError
        names one that is not in the checkpoint.
        """
        live = pack(_state_of(self._thing), self.key).tensors
        room: dict[str, torch.Tensor] = {}
        for name in names_in(tree):
            if name not in saved:
                raise ValueError(f"{name}: named in {self.key}, and not in the checkpoint")
            room[name] = self._blank(name, saved[name], live.get(name))
        self._room = (tree, room)
        return self._pieces(room)

    def load(self) -> None:
        """Gives the object its state, when the pieces of make_room() are filled."""
        if self._room is None:
            raise ValueError(f"{self.key}: nothing to load, want make_room() first")
        tree, tensors = self._room
        self._room, self._known = None, {}
        _load_into(self._thing, unpack(tree, tensors))

    def _pieces(self, tensors: Mapping[str, torch.Tensor]) -> list[Piece]:
        # Only those of this time are known the next: others would be kept alive.
        self._known = {name: self._known_piece(name, tensor) for name, tensor in tensors.items()}
        return [piece for _, piece in self._known.values() if piece is not None]

    def _known_piece(self, name: str,
                     tensor: torch.Tensor) -> tuple[tuple[Any, ...], Piece | None]:
        """The memory, and the piece of the last time if that is still the same."""
        memory = memory_of(tensor)
        known, piece = self._known.get(name, (None, None))
        return memory, piece if memory == known else piece_of(name, tensor, self._rules)

    def _blank(self, name: str, info: Saved, live: torch.Tensor | None) -> torch.Tensor:
        if isinstance(live, DTensor) and tuple(live.shape) == info.shape:
            return torch.empty_like(live, dtype=info.dtype, requires_grad=False)
        rule = rule_for(name, self._rules)
        shape = info.shape
        if rule is not None:
            shape = tuple(declared(shape, rule, name, is_whole=True).box.shape)
        return torch.empty(shape, dtype=info.dtype)


class Several:
    """Several objects with a state_dict as one, by name."""

    def __init__(self, key: str, things: Mapping[str, Any]) -> None:
        for name, thing in things.items():
            Holder(f"{key}.{name}", thing)  # refuses what is none
        self._key = key
        self.things = dict(things)

    def state_dict(self) -> dict[str, Any]:
        """Theirs, by name."""
        return {name: _state_of(thing) for name, thing in self.things.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Gives each its own."""
        if state.keys() != self.things.keys():
            raise ValueError(f"{self._key}: {', '.join(state)} were saved, want "
                             f"{', '.join(self.things)}")
        for name, thing in self.things.items():
            _load_into(thing, state[name])


def together(key: str, given: Any) -> Any:
    """One object, which a list or dict of some becomes too."""
    if isinstance(given, (list, tuple)):
        return Several(key, {str(k): thing for k, thing in enumerate(given)})
    if isinstance(given, Mapping) and not hasattr(given, "state_dict"):
        return Several(key, {str(name): thing for name, thing in given.items()})
    return given


def kinds_of(thing: Any) -> dict[str, str]:
    """The kind of an object, or those of several, by name.

    A module is just that: wrappers and FSDP change its class, and the names of its tensors
    tell more.
    """
    several = thing.things if isinstance(thing, Several) else {"": thing}
    return {name: "module" if isinstance(one, nn.Module) else kind_of(one)
            for name, one in several.items()}


def kind_of(thing: Any) -> str:
    """The class, as an error names it."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _state_of(thing: Any) -> Any:
    """Its state_dict; a scaler's with its two tensors, whose values are on the GPU."""
    if not isinstance(thing, GradScaler) or getattr(thing, "_scale", None) is None:
        return thing.state_dict()
    return {  # its own state_dict would wait for the GPU
        "scale": thing._scale,
        "growth_factor": thing._growth_factor,
        "backoff_factor": thing._backoff_factor,
        "growth_interval": thing._growth_interval,
        "_growth_tracker": thing._growth_tracker,
    }


def _load_into(thing: Any, state: Any) -> None:
    if isinstance(thing, GradScaler):
        state = {key: _number(value) for key, value in state.items()}
    thing.load_state_dict(state)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value
