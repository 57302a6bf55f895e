"""The names of tensors and of extra state in a checkpoint, as one rank sees them."""

import contextlib
import weakref
from collections.abc import Mapping
from typing import Any

import torch

from holdfast import _native
from holdfast.torch.state.extra_state import extra_state_names
from holdfast.torch.values.dotted_names import own_name, plain_name
from holdfast.torch.values.dtypes import SavedTensor


def saved_tensors(found: _native.SavedStep) -> dict[str, SavedTensor]:
    """The tensors of the checkpoint by their names and aliases."""
    return {name: SavedTensor.of(info) for info in found.tensors
            for name in (info.name, *info.aliases)}


def saved_for_rank(found: _native.SavedStep, rank: int) -> dict[str, SavedTensor]:
    """The tensors of the checkpoint, by the names that this rank has for them."""
    saved = saved_tensors(found)
    end = own_name("", rank % len(found.rank_objects))
    mine = {name.removesuffix(end): info for name, info in saved.items() if name.endswith(end)}
    of_all = {name: info for name, info in saved.items() if plain_name(name) == name}
    return {**of_all, **mine}


def name_in(saved: Mapping[str, SavedTensor], name: str, copies: str, rank: int) -> str:
    """The checkpoint's tensor for one of a rank; where it is own, that of this rank of the saving."""
    own = own_name(name, rank)
    if own in saved and (copies == "own" or name not in saved):
        return own
    return name


def saved_optimized(found: _native.SavedStep) -> list[str] | None:
    """The parameters that optimizers had on all ranks; None if the checkpoint does not say it."""
    ranks = [own.get("optimizer") for own in found.rank_objects]
    if None in ranks:
        return None
    return list(dict.fromkeys(name for own in ranks for group in own["groups"]
                              for name in group["params"]))


def saved_transient(found: _native.SavedStep) -> set[str]:
    """The buffers of all ranks that were not persistent."""
    return {name for own in found.rank_objects for name in own.get("transient", ())}


def saved_extra_names(found: _native.SavedStep) -> list[str]:
    """Names of the extra state of modules in a checkpoint."""
    return extra_state_names(extra_trees(found))


def extra_trees(found: _native.SavedStep) -> list[Any]:
    """The extra state of modules, by rank."""
    return [own.get("extra", {}) for own in found.rank_objects]


def forget_on_load(state: Any) -> None:
    """An optimizer that loads a state_dict replaces all its tensors: the state forgets them then."""
    ref = weakref.ref(state)

    def forget(optimizer: torch.optim.Optimizer) -> None:
        live = ref()
        if live is not None:
            live.forget()

    for one in state.optimizers:
        with contextlib.suppress(AttributeError):  # what only looks like an optimizer has no hooks
            handle = one.register_load_state_dict_post_hook(forget)
            weakref.finalize(state, handle.remove).atexit = False  # one optimizer may have many states
