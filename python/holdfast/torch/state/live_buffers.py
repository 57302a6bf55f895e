"""The buffers of models as they are now, looked up so cheaply that every step can do it."""

import operator
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch


class LiveBuffers:
    """The buffers by name. Modules are searched again only if one of them has changed."""

    def __init__(self, models: Sequence[Any]) -> None:
        self._models = models
        self._dicts: list[dict[str, Any]] = []  # of all modules: their children, their buffers
        self._seen: list[Any] = []  # the values of these dicts
        self._named: list[tuple[str, torch.Tensor]] = []
        self._places: list[tuple[dict[str, Any], dict[str, Any]]] = []  # dicts of buffers, with copies

    def now(self) -> list[tuple[str, torch.Tensor]]:
        """The names and buffers: the same list as before, unless a buffer was replaced.

        The names of models behind the first begin with their place.
        """
        found = list(chain.from_iterable(map(dict.values, self._dicts)))
        if not self._dicts or len(found) != len(self._seen) or not all(
                map(operator.is_, found, self._seen)):
            self._search()
        return self._named

    def places(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Where now() has found the buffers, for put_back(). Costs nothing."""
        return self._places

    def _search(self) -> None:
        modules = [module for model in self._models for module in model.modules()]
        self._dicts = [one for module in modules for one in (module._modules, module._buffers)]
        self._seen = list(chain.from_iterable(map(dict.values, self._dicts)))
        self._named = [(f"{index}.{name}" if index else name, one)
                       for index, model in enumerate(self._models)
                       for name, one in model.named_buffers()]
        self._places = [(module._buffers, dict(module._buffers)) for module in modules if module._buffers]


def put_back(places: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Gives modules the buffers that they had, in place of those that were assigned since then."""
    for live, kept in places:
        if list(live) != list(kept) or not all(map(operator.is_, live.values(), kept.values())):
            live.clear()
            live.update(kept)
