"""Finds what changes with the training beside the model, and was not given: averages, teachers, moments.

A second model, or tensors of the shapes of the model's parameters, may lie in a variable of the program,
or in an object of it. If they are the same objects with other elements at a later look, then the training
changes them, and they begin anew after a resume. Elements are compared, because many averages are written
through `.data`, for which torch counts no version. Nothing that was found is kept alive between two looks.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from holdfast.torch.loop.kept_elements import element_bytes, is_readable
from holdfast.torch.loop.step_record import digest_text
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values.program_values import program_values
from holdfast.torch.values.stored_attributes import attributes, inside

SAVES = frozenset({1, 2, 3, 8, 64, 512})  # in which is looked: it takes milliseconds
_SAMPLE = 8  # so many tensors of a model or a container are compared
_MOST = 2000  # so many objects of the program are looked at
_MOST_ITEMS = 256  # so many items of one container are entered
_DEEPEST = 4
_LEAVES = (str, bytes, int, float, complex, type(None), type, ModuleType, MethodType,
           BuiltinFunctionType, torch.Tensor, torch.optim.Optimizer, DataLoader)
_NOT_ENTERED = frozenset({"torch", "numpy", "holdfast", "accelerate", "lightning", "pytorch_lightning",
                          "transformers", "logging", "threading", "weakref", "_io"})

_MODULE = ("module: {path} ({kind}) changes with the training, and the Checkpointer was not given it: it begins "
           "anew after a resume; expected it in {option}")
_TENSORS = ("average: {path} has tensors like those of the model, which change with the training, and the "
            "Checkpointer was not given them: they begin anew after a resume; expected an object that has them, "
            "with state_dict() and load_state_dict(), in ema= or objects=")

_Shapes = tuple[torch.Size, ...]


class ForgottenTensors:
    """What one Checkpointer has found: `sentences` has one for each, by path."""

    def __init__(self, state: TrainingState, given: Iterable[Any]) -> None:
        """`given` is all that the Checkpointer saves beside the model."""
        self._state, self._given = state, list(given)
        self._elements: dict[tuple[str, int], list[bytes]] = {}  # at the last look
        self._has_looked = False
        self.sentences: dict[str, str] = {}
        _live.add(self)

    def begin(self) -> None:
        """Keeps what the elements are, to compare them at the first save; nothing if a save has looked."""
        if not self._has_looked:
            self.look()

    def given(self) -> list[Any]:
        """All that this Checkpointer saves."""
        return [*self._state.models, *self._given]

    def digests(self) -> dict[str, str]:
        """Kinds and digests of what is there now, by path."""
        return {path: f"{type(one).__name__} {digest_text(repr(now))}" for path, one, now in self._found()}

    def look(self) -> None:
        """Compares all that is there with what it was at the look before."""
        elements, self._has_looked = {}, True
        for path, one, now in self._found():
            elements[path, id(one)] = now
            if self._elements.get((path, id(one)), now) != now:
                self.sentences.setdefault(path, _sentence(path, one))
        self._elements = elements

    def _found(self) -> Iterator[tuple[str, Any, list[bytes]]]:
        """What the program has of other modules and tensors, with its path and some elements."""
        known = _Known(self._state, [part for one in list(_live) for part in one.given()])
        for path, one in _walk(program_values(), known.objects):
            if tensors := _sample_of(known.of_others(one)):
                yield path, one, [element_bytes(tensor) for tensor in tensors]


class _Known:
    """What Checkpointers of this process save, or what the training makes anew in each step."""

    def __init__(self, state: TrainingState, given: Iterable[Any]) -> None:
        others = list(inside(given, but=torch.optim.Optimizer))
        self.objects = {id(one) for one in others}
        modules = [one for one in others if isinstance(one, nn.Module)]
        tensors = [tensor for one in modules for tensor in (*one.parameters(), *one.buffers())]
        gradients = [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
        self._addresses = {one.data_ptr() for one in [*tensors, *gradients] if is_readable(one)}
        self._shapes = {shapes for model in state.models for shapes in _shapes_of(model)}
        self._lengths = set(map(len, self._shapes))

    def of_others(self, one: Any) -> list[torch.Tensor]:
        """The tensors of a module or a container that are not known, if it may follow the model."""
        if isinstance(one, nn.Module):
            return [tensor for tensor in (*one.parameters(), *one.buffers()) if self._is_other(tensor)]
        if len(one) < 2 or len(one) not in self._lengths:
            return []
        tensors = list(dict.values(one) if isinstance(one, dict) else one)
        if not all(isinstance(tensor, torch.Tensor) and tensor.grad_fn is None for tensor in tensors):
            return []  # what has a graph was computed in this step, perhaps in the place of that of another
        alike = tuple(tensor.shape for tensor in tensors) in self._shapes
        return tensors if alike and all(map(self._is_other, tensors)) else []

    def _is_other(self, tensor: torch.Tensor) -> bool:
        return is_readable(tensor) and tensor.data_ptr() not in self._addresses


def _shapes_of(model: nn.Module) -> Iterator[_Shapes]:
    """The shapes of what may be averaged: all parameters, those that are trained, and buffers too."""
    parameters, buffers = list(model.parameters()), list(model.buffers())
    yield tuple(one.shape for one in parameters)
    yield tuple(one.shape for one in parameters if one.requires_grad)
    yield tuple(one.shape for one in [*parameters, *buffers])
    yield tuple(one.shape for module in model.modules() for one in _in_state_dict(module))


def _in_state_dict(module: nn.Module) -> list[torch.Tensor]:
    """What state_dict() returns of the module itself."""
    buffers = [one for name, one in module._buffers.items()
               if name not in module._non_persistent_buffers_set]
    return [one for one in [*module._parameters.values(), *buffers] if one is not None]


def _walk(roots: Mapping[str, Any], known: set[int]) -> Iterator[tuple[str, Any]]:
    """The modules and containers in the variables of a program and in its objects, with their paths."""
    waiting = [(name, one, 0) for name, one in roots.items()]
    seen = set(known)
    for path, one, depth in waiting:  # it grows
        is_plain = type(one) is FunctionType and one.__closure__ is None
        if id(one) in seen or is_plain or issubclass(type(one), _LEAVES) or len(seen) - len(known) > _MOST:
            continue
        seen.add(id(one))
        is_container = type(one) is list or issubclass(type(one), dict)
        if is_container or issubclass(type(one), nn.Module):
            yield path, one
        if depth < _DEEPEST:
            waiting += [(where, inner, depth + 1) for where, inner in _inside(path, one)]


def _inside(path: str, one: Any) -> Iterator[tuple[str, Any]]:
    """What an object of the program holds; a module is looked at as a whole."""
    kind = type(one)
    if issubclass(kind, dict):
        yield from ((f"{path}[{key!r}]", inner) for key, inner in islice(dict.items(one), _MOST_ITEMS))
    elif kind in (list, tuple):
        yield from ((f"{path}[{number}]", inner) for number, inner in enumerate(islice(one, _MOST_ITEMS)))
    elif kind is FunctionType:
        cells = zip(one.__code__.co_freevars, one.__closure__ or (), strict=False)
        yield from ((f"{path}().{name}", cell.cell_contents) for name, cell in cells if _is_filled(cell))
    elif not issubclass(kind, nn.Module) and kind.__module__.partition(".")[0] not in _NOT_ENTERED:
        yield from ((f"{path}.{name}", inner) for name, inner in attributes(one).items())


def _is_filled(cell: CellType) -> bool:
    """False for a variable of a function around this one that has no value yet."""
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _sample_of(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return tensors[::max(1, -(-len(tensors) // _SAMPLE))]


def _sentence(path: str, one: Any) -> str:
    if not isinstance(one, nn.Module):
        return _TENSORS.format(path=path)
    is_average = isinstance(one, torch.optim.swa_utils.AveragedModel)
    return _MODULE.format(path=path, kind=type(one).__name__,
                          option="ema=" if is_average else "model= (a dict of all models) or ema=")


_live: "weakref.WeakSet[ForgottenTensors]" = weakref.WeakSet()  # of all Checkpointers
