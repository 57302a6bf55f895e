"""What an object stores, and the objects inside of it, read without a call of its own code: no property,
no __getattr__."""

import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

_MOST = 4000  # so many objects are looked at inside of others
_PLAIN = (str, bytes, int, float, complex, type(None), type, types.ModuleType, torch.Tensor)

class_dict = type.__dict__["__dict__"].__get__  # what a metaclass cannot hide
classes_of = type.__dict__["__mro__"].__get__


def stored(value: Any) -> Iterator[tuple[str, Any]]:
    """The entries of the instance dict, and the slots. No property is called."""
    for one in classes_of(type(value)):
        held = class_dict(one)
        how = held.get("__dict__")
        if type(how) is types.GetSetDescriptorType:
            inside = how.__get__(value)
            if type(inside) is dict:
                yield from ((key, inner) for key, inner in list(inside.items())
                            if type(key) is str)
        if "__slots__" in held or one is functools.partial:
            for key, slot in list(held.items()):
                if type(slot) is types.MemberDescriptorType:
                    try:
                        yield str(key), slot.__get__(value)
                    except AttributeError:  # nothing was put there
                        continue


def attributes(one: Any) -> dict[str, Any]:
    """The attributes that the object itself has; none if it hides them."""
    try:
        found = object.__getattribute__(one, "__dict__")
    except Exception:
        return {}
    return found if type(found) is dict else {}


def inside(given: Iterable[Any], but: type | tuple[type, ...] = ()) -> Iterator[Any]:
    """The given objects, and those in their attributes, lists, tuples and dicts, to a bound.

    Objects of the classes `but` are left out, and what is inside of them.
    """
    waiting, seen = list(given), set[int]()
    while waiting and len(seen) < _MOST:
        one = waiting.pop()
        if id(one) in seen or issubclass(type(one), _PLAIN) or but and issubclass(type(one), but):
            continue
        seen.add(id(one))
        yield one
        waiting += _parts(one)


def _parts(one: Any) -> list[Any]:
    kind = type(one)
    if issubclass(kind, dict):
        return list(dict.values(one))
    if issubclass(kind, (list, tuple, set, frozenset)):
        return list(kind.__iter__(one)) if kind in (list, tuple, set, frozenset) else []
    if kind is types.MethodType:
        return [one.__self__]
    if kind is types.FunctionType or issubclass(kind, nn.Module):
        return []
    return list(attributes(one).values())
