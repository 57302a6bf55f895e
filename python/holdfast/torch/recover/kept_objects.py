"""What a step may change before its update and that is no tensor of the model.

These are the options of parameter groups (a learning rate), and the objects that were given: a
scheduler, a scaler, objects of the user's own, the state of communication hooks. They are few
values, so that they are kept at the beginning of each step.
"""

from collections.abc import Sequence
from typing import Any

import torch

from holdfast.torch.recover.flat_copy import FlatCopy
from holdfast.torch.state.optimizer_states import with_own_states
from holdfast.torch.state.stateful import Stateful
from holdfast.torch.state.training_state import TrainingState

_SMALL = 64 << 10  # bytes of a tensor that is copied before each step; EarlyWrites watches others
_MUTABLE = (torch.Tensor, list, dict)


class KeptOptions:
    """The options of all parameter groups."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        keyed = with_own_states([(str(place), one) for place, one in enumerate(optimizers)])
        self._optimizers = [one for _, one in keyed]
        self._groups: list[list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]] = []

    def keep(self) -> None:
        """Keeps the options as they are now."""
        self._groups = [[(group, group.copy(), _copies(group)) for group in one.param_groups]
                        for one in self._optimizers]

    def restore(self) -> str:
        """Puts the options back. Returns why that was not possible, or ""."""
        for optimizer, kept in zip(self._optimizers, self._groups, strict=True):
            if len(optimizer.param_groups) != len(kept):
                return "the step had added or removed a parameter group"
            for group, values, copies in kept:
                for key in group.keys() - values.keys():
                    del group[key]
                group.update(values)
                for key, copy in copies.items():
                    _fill(values[key], copy)
        return ""


def _copies(group: dict[str, Any]) -> dict[str, Any]:
    """Copies of the options that can be changed in place."""
    return {key: one.detach().clone() if isinstance(one, torch.Tensor) else one.copy()
            for key, one in group.items() if isinstance(one, _MUTABLE) and key != "params"}


def _fill(live: Any, copy: Any) -> None:
    if isinstance(live, torch.Tensor):
        with torch.no_grad():
            live.copy_(copy)
    elif isinstance(live, list):
        live[:] = copy
    else:
        live.clear()
        live.update(copy)


class KeptObjects:
    """The values of all objects but the loader, with copies of their small tensors."""

    def __init__(self, state: TrainingState) -> None:
        self._peers = state.peers
        self._kept: list[tuple[Stateful, Any, dict[str, torch.Tensor]]] = []
        self._marks: list[list[tuple[int, int]]] = []  # of the tensors of each object
        self._flat = FlatCopy([])
        self._copied: list[str] = []  # names of the tensors in the flat copy

    def keep(self) -> None:
        """Keeps the objects as they are now."""
        self._kept = [(one, *_named(one)) for one in self._peers.but_loader()]
        self._marks = [_marks(tensors) for _, _, tensors in self._kept]
        small = {name: tensor for one, _, tensors in self._kept for name, tensor in tensors.items()
                 if tensor.nbytes <= _SMALL or self._peers.is_comm_hooks(one)}
        if not self._flat.is_of(list(small.values())):
            self._flat = FlatCopy(list(small.values()))
        self._copied = list(small)
        self._flat.take()

    def trees(self) -> dict[str, Any]:
        """The plain values that were kept, by the keys of the objects."""
        return {one.key: tree for one, tree, _ in self._kept}

    def large_tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of objects, by name, of which keep() makes no copy."""
        copied = set(self._copied)
        return {name: tensor for _, _, tensors in self._kept for name, tensor in tensors.items()
                if name not in copied}

    def restore(self) -> str:
        """Puts the objects back. Returns why that was not possible, or ""."""
        copies = dict(zip(self._copied, self._flat.views(), strict=True))
        for (one, tree, tensors), marks in zip(self._kept, self._marks, strict=True):
            now, live = _named(one)
            if repr(now) == repr(tree) and _marks(live) == marks and self._are_as_kept(tensors):
                continue
            try:
                one.give(tree, {name: copies[name].clone() if name in copies else tensor
                                for name, tensor in tensors.items()})
            except Exception as error:  # of a load_state_dict() of the user's
                return f"{one.key}: its load_state_dict() failed: {error}"
            if repr(_named(one)[0]) != repr(tree):
                return f"{one.key}: its load_state_dict() does not put back what a step has changed"
        return ""

    def _are_as_kept(self, tensors: dict[str, torch.Tensor]) -> bool:
        """Whether those with copies have their bits: torch counts no writes through `.data`."""
        return all(self._flat.equals(place) for place, name in enumerate(self._copied) if name in tensors)


def _named(one: Stateful) -> tuple[Any, dict[str, torch.Tensor]]:
    tree, pieces = one.capture()
    return tree, {piece.name: piece.tensor for piece in pieces}


def _marks(tensors: dict[str, torch.Tensor]) -> list[tuple[int, int]]:
    """What changes if a tensor is written to or replaced."""
    return [(one.data_ptr(), 0 if one.is_inference() else one._version)
            for one in tensors.values()]
