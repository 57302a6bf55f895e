"""Finds random generators that nobody gave: those that a dataset, a collate_fn or a module holds.

The search reads only what objects store: instance dicts, slots, closures, defaults, the parts of a
functools.partial, the objects of bound methods, containers, and the globals that functions name. It
calls no property, no method and no other code of the objects that it looks at, and it ends after
so many objects and levels. The generators of the process itself are left out, because they are saved
anyway.
"""

import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader

from holdfast.torch.values.generators import is_generator
from holdfast.torch.values.program_values import program_spaces, program_values
from holdfast.torch.values.stored_attributes import class_dict, classes_of, stored
from holdfast.torch.values.wrappers import hides

_MOST_OBJECTS = 20_000  # so many objects are looked at
_MOST_OF_PROGRAM = 4_000  # and so many more in the variables of the program
_DEEPEST_OF_PROGRAM = 4
_MOST_ITEMS = 1_000  # so many items of one container are looked at
_DEEPEST = 12  # levels of attributes and items
_MOST_FOUND = 64

# The code of these packages draws from the generators of the process, or from given ones.
_NO_USERS_CODE = frozenset({"torch", "numpy", "random", "builtins", "functools", "collections", "abc",
                            "typing", "types", "dataclasses", "enum"})
# Objects of these packages lead to everything else in the process, such as a trainer to its loaders.
_NOT_ENTERED = frozenset({"lightning", "pytorch_lightning", "logging", "threading", "concurrent",
                          "asyncio", "multiprocessing", "holdfast", "_io", "weakref", "_weakref"})
_LEAVES = (type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, type,
           types.ModuleType, torch.Tensor, torch.dtype, torch.device, random.SystemRandom, DataLoader,
           torch.optim.Optimizer)
_CONTAINERS = (dict, list, tuple, OrderedDict, deque, set, frozenset)
_CALLED = (types.MethodType, types.BuiltinMethodType, types.BuiltinFunctionType)
_TENSORS = frozenset({"_parameters", "_buffers", "_non_persistent_buffers_set"})  # of a module



def find_generators(owner: Any, name: str, leave_out: Iterable[Any] = ()) -> dict[str, Any]:
    """The generators that the owner holds, by paths that begin with `name`.

    A generator that is held twice has the shortest path. Objects of `leave_out` are not entered.
    """
    return Search(leave_out).find(owner, name)


class _Held(NamedTuple):
    """An object, the path that leads to it, how many levels the path has, and what holds it."""

    value: Any
    path: str
    depth: int
    holder: Any = None  # another _Held


def generators_of_program() -> dict[str, Any]:
    """The generators that are variables of the script or of its running functions: "__main__.rng", "train().rng"."""
    of_process = {id(one) for one in _of_process()}
    return {f"{space}.{name}": one for space, held in program_spaces() for name, one in held.items()
            if is_generator(one) and id(one) not in of_process}


class Search:
    """One search; what it has looked at in one owner, it does not look at in the next."""

    def __init__(self, leave_out: Iterable[Any] = ()) -> None:
        self._seen: dict[int, Any] = {id(one): one for one in (*_of_process(), *leave_out)}
        self._classes: dict[type, list[tuple[bool, str, Any]]] = {}
        self._leaves: dict[type, bool] = {}  # what _is_leaf() has answered
        self.looked_at = 0  # how many objects
        self.holders: list[_Held] = []  # those that generators were found in

    def leave_out(self, others: Iterable[Any]) -> None:
        """From now on, these objects are neither found nor entered."""
        self._seen.update({id(one): one for one in others})

    def find(self, owner: Any, name: str) -> dict[str, Any]:
        """The generators that the owner holds and no earlier owner did."""
        return self._find([_Held(owner, name, 0)], _DEEPEST, _MOST_OBJECTS)

    def find_in_program(self) -> dict[str, Any]:
        """The generators that objects in variables of the program hold, by paths such as "Env.rng".

        An object has the name of its class, because another function may call it otherwise.
        """
        roots = [_Held(one, _name_of_root(name, one), 0) for name, one in program_values().items()
                 if not (self._is_leaf(type(one)) or type(one) in _CALLED or is_generator(one))]
        return self._find(roots, _DEEPEST_OF_PROGRAM, self.looked_at + _MOST_OF_PROGRAM)

    def _find(self, roots: list[_Held], deepest: int, most: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        waiting = deque(roots)
        while waiting and self.looked_at < most and len(found) < _MOST_FOUND:
            held = waiting.popleft()
            kind = type(held.value)
            if id(held.value) in self._seen:
                continue
            self._seen[id(held.value)] = held.value
            self.looked_at += 1
            if is_generator(held.value):
                found[_unused(held.path, found)] = held.value
                if held.holder is not None and all(held.holder is not one for one in self.holders):
                    self.holders.append(held.holder)
            elif held.depth < deepest:
                waiting += self._inside(held)
        return found

    def find_again(self, holders: list[_Held], known: Collection[str]) -> dict[str, Any]:
        """The generators of known paths that these objects hold now: others may be in their place."""
        found: dict[str, Any] = {}
        for one in holders:
            for held in self._inside(one):
                if held.path in known and is_generator(held.value):
                    found.setdefault(held.path, held.value)
        return found

    def _inside(self, held: _Held) -> Iterator[_Held]:
        """What an object holds itself."""
        value, path, kind = held.value, held.path, type(held.value)
        if issubclass(kind, _CONTAINERS):
            pairs = _items(value, path)
        elif kind is types.FunctionType:
            pairs = _of_function(value, path)
        elif kind is types.MethodType:
            pairs = iter([(path, value.__self__), (path, value.__func__)])
        elif kind is types.BuiltinMethodType:
            pairs = iter([(path, value.__self__)])
        else:
            pairs = self._of_object(value, path)
        return (_Held(inner, where, held.depth + 1, held) for where, inner in pairs
                if not self._is_leaf(type(inner)) and id(inner) not in self._seen)

    def _is_leaf(self, kind: type) -> bool:
        """True for objects that hold no generator, or that lead too far."""
        known = self._leaves.get(kind)
        if known is None:
            known = issubclass(kind, _LEAVES) or _top_package(kind) in _NOT_ENTERED
            self._leaves[kind] = known
        return known

    def _of_object(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        """Instance dict, slots, and what the classes of the object lead to."""
        is_module = issubclass(type(value), nn.Module)
        for key, inner in stored(value):
            if type(inner) in _CONTAINERS and not inner or is_module and key in _TENSORS:
                continue
            if is_module and key == "_modules":
                for name, child in _items(inner, ""):
                    yield path if hides(value, name[1:]) else path + name, child
            elif is_module and key.endswith("_hooks"):
                yield from ((path, hook) for _, hook in _items(inner, ""))
            else:
                yield path if key in _SILENT else f"{path}.{key}", inner
        for one in classes_of(type(value)):
            for is_global, name, inner in self._of_class(one):
                yield name if is_global else f"{path}.{name}", inner

    def _of_class(self, one: type) -> list[tuple[bool, str, Any]]:
        """Generators that are attributes of a class, and what its methods name as globals."""
        if one not in self._classes:
            found: list[tuple[bool, str, Any]] = []
            if _top_package(one) not in _NO_USERS_CODE:
                for key, inner in list(class_dict(one).items()):
                    if is_generator(inner):
                        found.append((False, str(key), inner))
                    for function in _functions_in(inner):
                        found += [(True, name, held) for name, held in _globals_of(function)]
            self._classes[one] = found
        return self._classes[one]


def _of_function(function: types.FunctionType, path: str) -> Iterator[tuple[str, Any]]:
    """What a function keeps in its closure, its defaults and its attributes, and its globals."""
    if not _is_users(function):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"{path}.{name}", cell.cell_contents
        except ValueError:  # the cell is empty as yet
            continue
    yield from _globals_of(function)
    for given in (function.__defaults__, function.__kwdefaults__, function.__dict__):
        yield path, given


def _globals_of(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Generators and further functions that the code of a user's function names as globals."""
    if not _is_users(function):
        return []
    space = function.__globals__
    module = space.get("__name__")
    found = [(name, space.get(name)) for name in _names_in(function.__code__)]
    return [(f"{module if type(module) is str else 'globals'}.{name}", held) for name, held in found
            if is_generator(held) or type(held) is types.FunctionType]


# Attributes of a functools.partial, which a user does not write.
_SILENT = frozenset({"func", "args", "keywords"})


def _items(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The items of a container, read without methods that a subclass may have replaced."""
    kind = type(value)
    base = next(one for one in _CONTAINERS if issubclass(kind, one))
    try:
        if base is dict:
            pairs = list(islice(dict.items(value), _MOST_ITEMS))
        else:
            pairs = list(enumerate(islice(base.__iter__(value), _MOST_ITEMS)))
    except RuntimeError:  # another thread has changed it
        return
    for key, inner in pairs:
        yield (f"{path}.{key}" if type(key) in (str, int) else path), inner
    if kind is not base:
        for key, inner in stored(value):
            yield f"{path}.{key}", inner


def _functions_in(value: Any) -> list[types.FunctionType]:
    """The Python functions behind what a class has as an attribute."""
    if type(value) in (staticmethod, classmethod):
        value = value.__func__
    if type(value) is property:
        return [one for one in (value.fget,) if type(one) is types.FunctionType]
    return [value] if type(value) is types.FunctionType else []


def _names_in(code: types.CodeType) -> Iterator[str]:
    """The names of globals in a function, with those of the functions that are defined in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if type(constant) is types.CodeType:
            yield from _names_in(constant)


def _is_users(function: types.FunctionType) -> bool:
    """False for functions of installed packages: following them all would take long."""
    name, file = function.__globals__.get("__name__"), function.__code__.co_filename
    top = name.partition(".")[0] if type(name) is str else ""
    return not (top in _NO_USERS_CODE or "site-packages" in file or "dist-packages" in file)


def _top_package(kind: type) -> str:
    name = class_dict(kind).get("__module__")
    return name.partition(".")[0] if type(name) is str else "builtins"


def _name_of_root(name: str, one: Any) -> str:
    kind = type(one)
    has_no_class = kind in _CONTAINERS or _top_package(kind) in _NO_USERS_CODE
    return name if has_no_class else kind.__name__


def _unused(path: str, found: dict[str, Any]) -> str:
    """The path, with a number where another generator has it."""
    number = 1
    name = path
    while name in found:
        number += 1
        name = f"{path}~{number}"
    return name


def _of_process() -> list[Any]:
    """The generators of the process, which are saved anyway."""
    numpy = sys.modules.get("numpy")
    found = [torch.default_generator, random._inst]
    if torch.cuda.is_initialized():
        found += list(torch.cuda.default_generators)
    if numpy is not None and hasattr(numpy, "random"):
        found.append(numpy.random.mtrand._rand)
    return found
