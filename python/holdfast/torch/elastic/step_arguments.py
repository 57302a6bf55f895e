"""The arguments of a step that is made again by fewer ranks: each rank has another share of its batch."""

from collections.abc import Mapping
from typing import Any

import torch

_Path = tuple[Any, ...]


class StepArguments:
    """What ck.run() was given, where all tensors are parts of a batch of the loaders."""

    def __init__(self, args: Any, kwargs: Any, batches: list[Any]) -> None:
        """ValueError if the step does not get its batches, or other tensors, as arguments."""
        self._args, self._kwargs = args, kwargs
        self._paths: dict[int, _Path] = {}  # where each object lies in `batches`, by its id
        self._found = 0
        self._note(batches, ())
        self.cut_from(batches)
        if batches and not self._found:
            raise ValueError("ck.run() was not given the batch; expected ck.run(train, batch)")

    def cut_from(self, batches: list[Any]) -> tuple[Any, Any]:
        """The same arguments, with the parts of other batches."""
        if not batches:
            return self._args, self._kwargs
        return (tuple(self._cut(one, batches) for one in self._args),
                {key: self._cut(one, batches) for key, one in self._kwargs.items()})

    def _note(self, one: Any, path: _Path) -> None:
        if not isinstance(one, (str, bytes, int, float, complex, type(None))):
            self._paths[id(one)] = path
        for key, inside in _items(one):
            self._note(inside, (*path, key))

    def _cut(self, one: Any, batches: list[Any]) -> Any:
        if (path := self._paths.get(id(one))) is not None:
            self._found += 1
            for key in path:
                batches = batches[key]
            return batches
        if isinstance(one, torch.Tensor):
            raise ValueError(f"ck.run() was given a tensor of shape {list(one.shape)} that is not of the batch; "
                             "expected ck.run(train, batch), with parts of the batch as it was read")
        if type(one) in (list, tuple):
            return type(one)(self._cut(inside, batches) for inside in one)
        if type(one) is dict:
            return {key: self._cut(inside, batches) for key, inside in one.items()}
        return one


def _items(one: Any) -> list[tuple[Any, Any]]:
    if isinstance(one, Mapping):
        return list(one.items())
    return list(enumerate(one)) if isinstance(one, (list, tuple)) else []
