"""Finds the optimizers inside an optimizer: Lookahead and SAM wrap another one.

Most wrappers (accelerate, Fabric, PostLocalSGD) show the state of the inner optimizer as their own.
Lookahead and SAM have a state beside it, so that both states must be saved.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from holdfast.torch.values.dotted_names import join

_INNER = ("optimizer", "optim", "base_optimizer", "_optimizer")  # attributes of wrappers
_KEY = "~inner"  # in names of slots; no module has such a name


def with_inner(optimizer: Any) -> Iterator[Any]:
    """The optimizer, and those that it wraps."""
    seen: list[Any] = []
    while hasattr(optimizer, "param_groups") and not any(optimizer is one for one in seen):
        yield optimizer
        seen.append(optimizer)
        inner = (getattr(optimizer, name, None) for name in _INNER)
        optimizer = next((one for one in inner if hasattr(one, "param_groups")), None)


def note_earlier_steps(optimizer: Any) -> None:
    """Tells torch's schedulers that the optimizer has made steps, in an earlier process.

    After a save at an epoch's end, the scheduler's step comes first in the new process, and torch
    would warn that it should come after a step of the optimizer.
    """
    for one in with_inner(optimizer):
        if isinstance(one, torch.optim.Optimizer):
            vars(one)["_opt_called"] = True


def with_own_states(keyed: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """(key, optimizer) of these optimizers, and of those inside them that have another state.

    An inner optimizer that was given by a key of its own is not listed again. Neither is one
    without a parameter of its wrapper: its parameters are copies (in another dtype), and only the
    wrapper's own state_dict() knows to which parameters they belong.
    """
    found = list(keyed)
    for key, outer in list(found):
        for inner in list(with_inner(outer))[1:]:
            key = join(key, _KEY)
            if hasattr(inner, "state") and not _is_among(inner, found) and _share(outer, inner):
                found.append((key, inner))
    return found


def is_inner(name: str) -> bool:
    """True for the name of a slot, or of a parameter, of an inner optimizer."""
    return _KEY in name.split(".")


def _is_among(inner: Any, found: list[tuple[str, Any]]) -> bool:
    return any(inner is one or inner.state is getattr(one, "state", None) for _, one in found)


def _share(outer: Any, inner: Any) -> bool:
    """True if both have a parameter in common."""
    ids = {id(parameter) for parameter in _parameters(outer)}
    return any(id(parameter) in ids for parameter in _parameters(inner))


def _parameters(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
