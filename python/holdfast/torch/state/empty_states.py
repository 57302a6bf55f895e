"""Objects that save nothing although they hold something: their state_dict() is empty.

torchmetrics leaves its states out by default, for one. An empty state_dict() alone proves nothing: an
object may have no state, or none yet. So what the object stores is looked at, too.
"""

from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from holdfast.torch.values.generators import is_generator
from holdfast.torch.values.stored_attributes import stored
from holdfast.torch.values.trees import TYPE

_NUMBERS = (bool, int, float, complex, str, bytes)
_CONTAINERS = (list, dict, set, tuple)


class EmptyState:
    """Whether one object is seen to lose what it holds."""

    def __init__(self) -> None:
        self.loses = False
        self._before: dict[str, Any] | None = None  # its numbers and texts at an earlier save

    def look(self, thing: Any, tree: Any) -> bool:
        """True at the first save that shows it; `tree` is the packed state_dict()."""
        if self.loses or not _is_nothing(tree) or _needs_none(thing):
            return False
        held = dict(stored(thing))
        now = {key: one for key, one in held.items() if type(one) in _NUMBERS}
        self.loses = any(_is_state(one) for one in held.values()) or (
            self._before is not None and now != self._before)
        self._before = now if self._before is None else self._before
        return self.loses


def _is_nothing(tree: Any) -> bool:
    if type(tree) is not dict:
        return tree is None
    return not (tree.get("items", True) if TYPE in tree else tree)


def _needs_none(thing: Any) -> bool:
    """True for what has no state by design: a disabled scaler, a loss of torch."""
    return isinstance(thing, GradScaler) or type(thing).__module__.startswith("torch.nn.")


def _is_state(one: Any) -> bool:
    """True for tensors, generators, and containers with something in them."""
    return issubclass(type(one), torch.Tensor) or is_generator(one) or (
        type(one) in _CONTAINERS and bool(one))
