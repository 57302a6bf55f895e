"""Objects of the user that have no state_dict of their own: lists, dicts, namedtuples, dataclasses.

What is inside them is saved as one object. Random generators in them are not part of that: they are
saved and restored with all other generators, under names such as "rngs.0".
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from holdfast.torch.values.dotted_names import join
from holdfast.torch.values.generators import is_generator
from holdfast.torch.values.named_fields import fields_of, kind_with_fields, set_fields
from holdfast.torch.values.trees import pack

_ANY_SIZE = 1 << 62
_LEVELS = 6  # so many containers inside each other are looked into: a user's objects may be rings


class StatefulGroup:
    """Several objects with a state_dict, by name, that are saved as one object."""

    def __init__(self, key: str, members: Mapping[str, Any]) -> None:
        self._key = key
        self.members = {name: as_one_stateful(join(key, name), one)
                        for name, one in members.items() if not holds_only_generators(one)}
        for name, member in self.members.items():
            check_stateful(join(key, name), member)

    def state_dict(self) -> dict[str, Any]:
        """The states of all members, by name."""
        return {name: state_of(member) for name, member in self.members.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Gives each member its own state."""
        if state.keys() != self.members.keys():
            raise ValueError(f"{self._key}: {', '.join(state)} were saved; expected "
                             f"{', '.join(self.members)}")
        for name, member in self.members.items():
            load_into(member, state[name])

    def unlike(self) -> list[str]:
        """Sentences about members that could not get what was saved."""
        return [line for member in self.members.values() for line in unlike(member)]


class Fields:
    """A dataclass: what has a state_dict in it gets its state, and all else is set anew."""

    def __init__(self, key: str, thing: Any) -> None:
        self._key = key
        self.thing = thing
        pack(self.state_dict(), key)  # refuses now what could not be stored at a save

    def state_dict(self) -> dict[str, Any]:
        """The fields by name, without those that are random generators."""
        return {name: state_of(one) if is_stateful(one) else one for name, one in self._parts()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Sets the fields."""
        parts = dict(self._parts())
        for name, one in state.items():
            if name in parts and is_stateful(parts[name]):
                load_into(parts[name], one)
            else:
                set_fields(self.thing, {name: one})

    def _parts(self) -> list[tuple[str, Any]]:
        found = [(name, one) for name, one in fields_of(self.thing) if not holds_only_generators(one)]
        return [(name, as_one_stateful(join(self._key, name), one) if _is_kept(one) else one)
                for name, one in found]


class Constant:
    """A value that cannot be changed in place, such as a number in a namedtuple."""

    def __init__(self, key: str, value: Any) -> None:
        self._key, self._value = key, value
        self._saved = self._text = repr(pack(value, key, inline=_ANY_SIZE).tree)

    def state_dict(self) -> Any:
        """The value."""
        return self._value

    def load_state_dict(self, value: Any) -> None:
        """Notes a value that is another one."""
        self._saved = repr(pack(value, self._key, inline=_ANY_SIZE).tree)

    def unlike(self) -> list[str]:
        """A sentence if another value was saved."""
        if self._saved == self._text:
            return []
        return [f"{self._key}: {self._saved:.60} was saved, and a field of a namedtuple cannot be "
                f"changed: it is {self._text:.60}; expected ck.values for what changes"]


def as_one_stateful(key: str, given: Any) -> Any:
    """The object itself; a list, dict, namedtuple or dataclass becomes one with a state_dict."""
    if is_stateful(given):
        return given
    if key.count(".") > _LEVELS:
        raise ValueError(f"{key}: objects more than {_LEVELS} deep; expected fewer, and no ring")
    kind = kind_with_fields(given)
    if kind == "dataclass":
        return Fields(key, given)
    if isinstance(given, (list, tuple)):
        if kind == "namedtuple":
            given = [one if _is_kept(one) or is_generator(one) else Constant(join(key, name), one)
                     for name, one in fields_of(given)]
        return StatefulGroup(key, {str(k): member for k, member in enumerate(given)})
    if isinstance(given, Mapping) and not hasattr(given, "state_dict"):
        return StatefulGroup(key, {str(name): member for name, member in given.items()})
    return given


def generators_in(key: str, given: Any, levels: int = _LEVELS) -> dict[str, Any]:
    """The random generators in an object that the user gave, by names that begin with its key."""
    if is_generator(given):
        return {key: given}
    found: dict[str, Any] = {}
    for name, one in _members(given) if levels else ():
        found |= generators_in(join(key, name), one, levels - 1)
    return found


def holds_only_generators(given: Any, levels: int = _LEVELS) -> bool:
    """True for a generator, and for a list or dict of generators that is not empty."""
    members = _members(given) if levels else []
    return is_generator(given) or bool(members) and all(holds_only_generators(one, levels - 1)
                                                        for _, one in members)


def is_stateful(thing: Any) -> bool:
    """True if the object has a state_dict and load_state_dict of its own."""
    return all(callable(getattr(thing, one, None)) for one in ("state_dict", "load_state_dict"))


def check_stateful(key: str, thing: Any) -> None:
    """TypeError, with the key, for an object without state_dict() or load_state_dict()."""
    for method in ("state_dict", "load_state_dict"):
        if not callable(getattr(thing, method, None)):
            raise TypeError(f"{key}: a {class_name(thing)} without {method}(); expected an object "
                            "with state_dict() and load_state_dict()")


def unlike(thing: Any) -> list[str]:
    """Sentences about what could not be given the state that was saved."""
    return thing.unlike() if isinstance(thing, (StatefulGroup, Constant)) else []


def _is_kept(given: Any) -> bool:
    """True if the object stays the same one and gets a state, and is not replaced by a value."""
    return kind_with_fields(given) == "dataclass" or _has_stateful(given)


def _has_stateful(given: Any, levels: int = _LEVELS) -> bool:
    """True if the object has a state_dict, or holds one that has, or a generator."""
    return is_stateful(given) or any(is_generator(one) or _has_stateful(one, levels - 1)
                                     for _, one in (_members(given) if levels else ()))


def _members(given: Any) -> list[tuple[str, Any]]:
    """What a list, dict, namedtuple or dataclass without a state_dict of its own has inside."""
    if type(given) is dict:
        return [(str(key), one) for key, one in given.items()]
    if type(given) in (list, tuple):
        return [(str(k), one) for k, one in enumerate(given)]
    if kind_with_fields(given) and not is_stateful(given):
        return fields_of(given)
    return []


def class_name(thing: Any) -> str:
    """The class of an object with its module, for messages."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def state_of(thing: Any) -> Any:
    """The object's state_dict; for a GradScaler, one that does not wait for the GPU."""
    if not isinstance(thing, GradScaler) or getattr(thing, "_scale", None) is None:
        return thing.state_dict()
    return {  # its own state_dict() would read two numbers from the GPU and wait for them
        "scale": thing._scale,
        "growth_factor": thing._growth_factor,
        "backoff_factor": thing._backoff_factor,
        "growth_interval": thing._growth_interval,
        "_growth_tracker": thing._growth_tracker,
    }


def load_into(thing: Any, state: Any) -> None:
    """Has the object load a state that state_of() returned."""
    if isinstance(thing, GradScaler):
        state = {key: _number(value) for key, value in state.items()}
    thing.load_state_dict(state)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value
