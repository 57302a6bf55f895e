"""Which adapters of PEFT are active, so that an export takes the one that was trained."""

from typing import Any

from torch import nn

KEY = "active adapters"
_OF_LAYER, _OF_MODEL = "_active_adapter", "active_adapter"


class ActiveAdapters:
    """The names of the active adapters of some models, as they are when asked for.

    All layers of a model have the same active adapters, so one of them is looked at. It is looked
    for once: a walk over all modules for each save would cost too much.
    """

    def __init__(self, models: list[nn.Module]) -> None:
        self._models = models
        self._found: list[tuple[Any, str]] | None = None

    def names(self) -> list[str]:
        """The names. Called only once PEFT is imported: nothing else has such modules."""
        if self._found is None:
            self._found = [one for model in self._models if (one := _look(model)) is not None]
        names = [name for module, key in self._found for name in _texts(vars(module).get(key))]
        return list(dict.fromkeys(names))


def _look(model: nn.Module) -> tuple[Any, str] | None:
    """A module of PEFT, and the attribute in which it keeps the names of active adapters."""
    whole = None
    for module in model.modules():
        if any(base.__module__.startswith("peft.") for base in type(module).__mro__):
            if _OF_LAYER in vars(module):
                return module, _OF_LAYER
            if whole is None and _OF_MODEL in vars(module):
                whole = module, _OF_MODEL
    return whole


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, str)]
