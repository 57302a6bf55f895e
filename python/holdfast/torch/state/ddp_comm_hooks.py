"""The state of DDP's communication hooks, which each rank saves for itself.

PowerSGD keeps on each rank the part of its gradients that compression left out, and adds that
part to the next gradients. Without it, and without PowerSGD's step count and generator, a resumed
run differs. A state with a state_dict() is saved by that; any other by its attributes.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from holdfast.torch.state.module_names import by_key, find_wrappers
from holdfast.torch.values.dotted_names import join
from holdfast.torch.values.trees import pack

KEY = "ddp.comm_hooks"  # the key of the object in a checkpoint


class CommHooks:
    """The hooks of all DDP modules inside a model; hooks may still be registered later."""

    def __init__(self, models: Any) -> None:
        self._ddps = [(join(key, name), ddp) for key, model in by_key(models)
                      for name, ddp in find_wrappers(model).items()]

    @property
    def is_possible(self) -> bool:
        """False if no module is wrapped in DDP, so that there can be no hook."""
        return bool(self._ddps)

    def state_dict(self) -> dict[str, Any]:
        """The states by DDP module and number of the hook; process groups are left out."""
        return {name: _values_of(state) for name, state in self._states()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restores the states of hooks that are there, after DDP has rebuilt its buckets."""
        for name, state in self._states():
            if name in saved:
                _set_values(state, saved[name])

    def unsaved(self) -> list[str]:
        """Attributes that cannot be stored, of states whose class is not torch's own."""
        return [f"{type(state).__qualname__}.{name}" for _, state in self._states()
                if not (_has_dict(state) or type(state).__module__.startswith("torch."))
                for name, value in _attributes(state)
                if not isinstance(value, dist.ProcessGroup) and not _is_stored(_packable(value))]

    def _states(self) -> Iterator[tuple[str, Any]]:
        for name, ddp in self._ddps:
            for number, (_, state) in enumerate(ddp._comm_hooks):
                if state is not None and not isinstance(state, dist.ProcessGroup):
                    yield join(name, str(number)), state


def _values_of(state: Any) -> dict[str, Any]:
    if _has_dict(state):
        return {"state_dict": state.state_dict()}
    values = {name: _packable(value) for name, value in _attributes(state)}
    return {name: value for name, value in values.items() if _is_stored(value)}


def _set_values(state: Any, values: Mapping[str, Any]) -> None:
    if _has_dict(state):
        state.load_state_dict(values["state_dict"])
        return
    for name, value in values.items():
        live = getattr(state, name, None)
        if isinstance(live, torch.Generator) or _is_numpys(live):
            live.set_state(value)
        else:
            setattr(state, name, value)


def _has_dict(state: Any) -> bool:
    return callable(getattr(state, "state_dict", None)) and callable(
        getattr(state, "load_state_dict", None))


def _attributes(state: Any) -> list[tuple[str, Any]]:
    slots = [name for kind in type(state).__mro__ for name in getattr(kind, "__slots__", ())]
    names = dict.fromkeys([*slots, *getattr(state, "__dict__", {})])
    return [(name, getattr(state, name)) for name in names if hasattr(state, name)]


def _packable(value: Any) -> Any:
    """The state of a generator; any other value as it is."""
    random = isinstance(value, torch.Generator) or _is_numpys(value)
    return value.get_state() if random else value


def _is_numpys(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.random.RandomState)


def _is_stored(value: Any) -> bool:
    try:
        pack(value, "")
    except (TypeError, ValueError):
        return False
    return True
