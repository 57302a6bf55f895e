"""What an object stores, read without a call of its own code: no property, no __getattr__."""

import functools
import types
from collections.abc import Iterator
from typing import Any

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
