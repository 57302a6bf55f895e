"""What optimizers hold beside slots: the options of parameter groups, and global state.

Options are saved by the names of the parameters, so that groups may be cut in another way over
other ranks. Global state is what an optimizer keeps in its state by keys that are no parameters.
"""

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import torch
from torch.optim import Optimizer

from holdfast.torch.state.module_names import Entry
from holdfast.torch.values.dotted_names import join
from holdfast.torch.values.tree_leaves import TYPE
from holdfast.torch.values.trees import pack, unpack

# How a step is computed is the live optimizer's choice, not the checkpoint's.
_LIVE_OPTIONS = {"params", "param_names", "foreach", "fused", "capturable", "differentiable"}
_ANY_SIZE = 1 << 62

Place = tuple[Entry, Optimizer, dict[str, Any]]  # a parameter, its optimizer, its group


def merge_optimizer_objects(ranks: Sequence[Mapping[str, Any]],
                            own: int | None = None) -> dict[str, Any]:
    """Merges what TensorState.objects() returned on all ranks.

    If ranks disagree, as with a scheduler that was fed with losses of its rank, the values of
    rank `own` are taken, and else those of the lowest rank. "differ" has the names of parameters
    whose options ranks disagree on and of which rank `own` saved none.
    """
    merged: dict[str, Any] = {"groups": [], "slots": {}, "odd": {}, "scalars": {}, "other": {},
                              "differ": []}
    options: dict[str, Any] = {}
    mine: set[str] = set()
    for rank in sorted(range(len(ranks)), key=lambda rank: rank != own):
        for group in ranks[rank]["groups"]:
            fresh = [name for name in group["params"] if name not in options]
            for name in group["params"]:
                other = options.setdefault(name, group["options"]) != group["options"]
                if other and name not in mine and name not in merged["differ"]:
                    merged["differ"].append(name)
            if fresh:
                merged["groups"].append({"params": fresh, "options": group["options"]})
        mine = set(options) if rank == own else mine
        for part in ("slots", "odd", "scalars", "other"):
            merged[part] = {**ranks[rank].get(part, {}), **merged[part]}
    return merged


def has_global_state(optimizer: Optimizer) -> bool:
    """True if the optimizer's state has keys that are no parameters."""
    return bool(_global_state(optimizer))


def _global_state(optimizer: Optimizer) -> list[tuple[Any, Any]]:
    return [(k, v) for k, v in optimizer.state.items() if not isinstance(k, torch.Tensor)]


def pack_global_state(key: str, optimizer: Optimizer) -> list[tuple[Any, Any]]:
    """The global state of an optimizer, as plain values."""
    root = join("optimizer", key)
    return [(k, pack(v, join(root, str(k)), inline=_ANY_SIZE).tree)
            for k, v in _global_state(optimizer)]


def remove_global_state(key: str, optimizer: Optimizer, objects: Mapping[str, Any]) -> None:
    """Removes the global state that the checkpoint does not have."""
    saved = [name for name, _ in objects["other"].get(join("optimizer", key), [])]
    if any(group["params"] for group in objects["groups"]):
        for name in [k for k, _ in _global_state(optimizer) if k not in saved]:
            del optimizer.state[name]


def group_options(key: str, group: Mapping[str, Any]) -> Any:
    """The options of a group, as plain values."""
    kept = {k: v for k, v in group.items() if k not in _LIVE_OPTIONS}
    if all(map(_is_plain, kept, kept.values())):  # as pack() would return them
        return kept
    return pack(kept, join("optimizer", key, "group"), inline=_ANY_SIZE).tree


def _is_plain(key: Any, value: Any) -> bool:
    """True for an option that is its own packed form."""
    kind = type(value)
    return type(key) is str and key.isascii() and key != TYPE and (
        kind in (bool, float, type(None)) or kind is int and abs(value) < _ANY_SIZE
        or kind is tuple and all(type(one) is float for one in value))


def check_options(names: list[str], options: Mapping[str, Any]) -> None:
    """ValueError if parameters of one live group were saved with different options."""
    for name in names:
        if options[name] != options[names[0]]:
            raise ValueError(f"optimizer: {names[0]} and {name} are in one group, and were saved "
                             f"with {options[names[0]]} and {options[name]}; "
                             "expected equal options")


def set_options(group: dict[str, Any], names: list[str], options: Mapping[str, Any]) -> None:
    """Gives a live group the options saved for its parameters; ValueError if they differ."""
    check_options(names, options)
    if not names:
        return
    for key, value in unpack(options[names[0]], {}).items():
        group[key] = _option_from(group.get(key), value)


def _option_from(live: Any, value: Any) -> Any:
    """The saved value of an option. A live tensor is filled: a scheduler may hold the same one."""
    if not isinstance(live, torch.Tensor):
        return value
    if isinstance(value, Number):
        live.detach().fill_(value)
    elif isinstance(value, torch.Tensor) and value.shape in (live.shape, ()):
        live.detach().copy_(value)
    else:
        return value.to(live.device) if isinstance(value, torch.Tensor) else value
    return live
