"""What an optimizer's own state_dict() has beside "state" and "param_groups".

Optimizers that wrap others (Lookahead) keep slow weights and counters there. Such entries are
saved as an object, and restored by the optimizer's own load_state_dict().
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch.optim import Optimizer

from holdfast.torch.state.optimizer_states import with_own_states
from holdfast.torch.values.dotted_names import join

_WALKED = ("state", "param_groups")  # TensorState saves these


class AddedByOptimizer:
    """The entries that an optimizer adds to its state_dict, as an object for Stateful."""

    def __init__(self, key: str, optimizer: Any) -> None:
        self._optimizer = optimizer
        added = list(self.state_dict())
        if added and not _has_own(optimizer, "load_state_dict"):
            raise TypeError(f"{join('optimizer', key)}: a {type(optimizer).__name__} whose "
                            f"state_dict() adds {', '.join(map(str, added))}; expected a "
                            "load_state_dict() of its own too, that loads it")

    def state_dict(self) -> dict[Any, Any]:
        """The added entries."""
        made = self._optimizer.state_dict()
        return {key: value for key, value in made.items() if key not in _WALKED}

    def load_state_dict(self, added: Mapping[Any, Any]) -> None:
        """Has the optimizer load the added entries, after its slots are restored."""
        if not added:
            return
        outer = self._optimizer
        before = [(one, dict(one.state), [dict(group) for group in one.param_groups])
                  for _, one in with_own_states([("", outer)])]
        outer.load_state_dict({**outer.state_dict(), **added})
        # Loading casts the moments to the dtype of their parameters: put the restored ones back.
        for one, state, groups in before:
            one.state.clear()
            one.state.update(state)
            for group, was in zip(one.param_groups, groups, strict=True):
                group.update(was)


def additions_by_key(optimizers: Iterable[tuple[str, Any]]) -> dict[str, AddedByOptimizer]:
    """Optimizers that may add entries, by keys with a dot, which no object of the user's has."""
    found: dict[str, AddedByOptimizer] = {}
    for key, one in optimizers:
        hooks = getattr(one, "_optimizer_state_dict_post_hooks", None)
        if _has_own(one, "state_dict") or hooks:
            name = join("optimizer", key, "state_dict")
            # Optimizers in a list share a name.
            others = sum(known.partition("~")[0] == name for known in found)
            found[f"{name}~{others + 1}" if others else name] = AddedByOptimizer(key, one)
    return found


def _has_own(optimizer: Any, method: str) -> bool:
    own = getattr(type(optimizer), method, None)
    hooks = getattr(optimizer, "_optimizer_load_state_dict_pre_hooks", None)
    return own is not None and (own is not getattr(Optimizer, method) or (
        method == "load_state_dict" and bool(hooks)))
