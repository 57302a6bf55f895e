"""namedtuples and dataclasses as plain values, and back, without a call of their own code.

A file names a class, and nothing is imported for it: the class is looked up among the modules that the
process has imported already, and taken if it is a namedtuple or a dataclass with the same fields.
Otherwise a stand-in with the same fields comes back.
"""

import sys
import types
from collections import namedtuple
from collections.abc import Callable
from typing import Any

from holdfast.torch.values.stored_attributes import class_dict, classes_of, stored

_MOST_FIELDS = 1000


def kind_with_fields(value: Any) -> str:
    """"namedtuple" or "dataclass" if the value is one; else ""."""
    return _kind_of_class(type(value))


def fields_of(value: Any) -> list[tuple[str, Any]]:
    """The names and values of a namedtuple's fields, or of all that a dataclass stores."""
    kind = type(value)
    if issubclass(kind, tuple):
        return list(zip(_tuple_fields(kind), tuple.__iter__(value), strict=True))
    return list(stored(value))


def make_namedtuple(module: str, name: str, fields: list[str], items: list[Any]) -> tuple[Any, bool]:
    """The namedtuple, and whether it is one of the class that was saved."""
    kind = _find_class(module, name, "namedtuple")
    if kind is not None and list(_tuple_fields(kind)) == fields and len(fields) == len(items):
        return tuple.__new__(kind, items), True
    if len(fields) > _MOST_FIELDS:
        raise ValueError(f"a namedtuple of {len(fields)} fields; expected at most {_MOST_FIELDS}")
    return namedtuple(name.rpartition(".")[2], fields)._make(items), False


def make_dataclass(module: str, name: str, items: dict[str, Any]) -> tuple[Any, bool]:
    """The dataclass with these values, and whether it is one of the class that was saved."""
    kind = _find_class(module, name, "dataclass")
    if kind is None or _data_fields(kind) - items.keys():
        return types.SimpleNamespace(**items), False
    value = object.__new__(kind)
    set_fields(value, items)
    return value, True


def set_fields(value: Any, items: dict[str, Any]) -> None:
    """Stores values in an object as its attributes, past a frozen class and past properties."""
    put = _writer(value)
    for key, item in items.items():
        put(key, item)


def _writer(value: Any) -> Callable[[str, Any], None]:
    slots: dict[str, Any] = {}
    inside: dict[str, Any] | None = None
    for one in classes_of(type(value)):
        for key, held in class_dict(one).items():
            if type(held) is types.MemberDescriptorType:
                slots.setdefault(key, held)
            elif key == "__dict__" and type(held) is types.GetSetDescriptorType and inside is None:
                inside = held.__get__(value)

    def put(key: str, item: Any) -> None:
        if key in slots:
            slots[key].__set__(value, item)
        elif inside is not None:
            inside[key] = item
        else:
            raise ValueError(f"{type(value).__qualname__}: no place for {key!r}")

    return put


def _find_class(module: str, name: str, kind: str) -> type | None:
    """The class of that name in a module that is imported already, if it is of that kind."""
    found: Any = sys.modules.get(module)
    for word in name.split("."):
        if type(found) is types.ModuleType:
            found = vars(found).get(word)
        elif issubclass(type(found), type):
            found = class_dict(found).get(word)
    return found if issubclass(type(found), type) and _kind_of_class(found) == kind else None


def _kind_of_class(kind: type) -> str:
    if issubclass(kind, tuple):
        return "namedtuple" if kind is not tuple and _tuple_fields(kind) is not None else ""
    return "dataclass" if any("__dataclass_fields__" in class_dict(one)
                              for one in classes_of(kind)) else ""


def _tuple_fields(kind: type) -> Any:
    """The names of a namedtuple's fields; None if the class has none."""
    for one in classes_of(kind):
        fields = class_dict(one).get("_fields")
        if type(fields) is tuple and all(type(name) is str for name in fields):
            return fields
    return None


def _data_fields(kind: type) -> set[str]:
    """The names of a dataclass's fields; those of a base class come first."""
    found = next(class_dict(one)["__dataclass_fields__"] for one in classes_of(kind)
                 if "__dataclass_fields__" in class_dict(one))
    return set(found)
