"""The states and groups of optimizers, by the names of the parameters that they belong to.

Lookahead and SAM wrap another optimizer. Most wrappers (accelerate, Fabric, PostLocalSGD) show the state of
the inner optimizer as their own. Lookahead and SAM have a state beside it, so that both states must be saved.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from holdfast.torch.state.change_detection import ChangeDetector
from holdfast.torch.state.module_names import Entry
from holdfast.torch.state.param_groups import Place, group_options, has_global_state, set_options
from holdfast.torch.values.dotted_names import join

_INNER = ("optimizer", "optim", "base_optimizer", "_optimizer")  # attributes of wrappers
_KEY = "~inner"  # in names of slots; no module has such a name


class OptimizerStates:
    """Several optimizers by key; the key is "" if there is one, or a list of them.

    Optimizers inside them that have a state of their own are walked, too.
    `entry_of` finds the model's entry of a parameter that an optimizer has.
    """

    def __init__(self, keyed: list[tuple[str, Optimizer]],
                 entry_of: Callable[[torch.Tensor], Entry | None]) -> None:
        self._given = [optimizer for _, optimizer in keyed]
        self.keyed = with_own_states(keyed)
        self._find = entry_of
        self._group_names: dict[tuple[str, int], tuple[list[torch.Tensor], list[str]]] = {}

    def entry_of(self, parameter: torch.Tensor) -> Entry:
        """The model's entry of the parameter; ValueError if the model does not have it."""
        entry = self._find(parameter)
        if entry is None:
            raise ValueError(f"optimizer: has a parameter of shape {tuple(parameter.shape)} that "
                             "the model does not have; expected the module that has it in model= "
                             "too, as model={\"net\": net, \"loss\": loss}, or, if the model was "
                             "wrapped, the optimizer made after that")
        return entry

    def states(self) -> Iterator[tuple[str, Entry, dict[Any, Any]]]:
        """(what names of its slots begin with, entry, state) of every parameter with a state."""
        for key, optimizer in self.keyed:
            for parameter, state in optimizer.state.items():
                if isinstance(parameter, torch.Tensor):
                    entry = self.entry_of(parameter)
                    yield slot_prefix(key, entry), entry, state

    def named_groups(self) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
        """(key of the optimizer, group, slot prefixes of its parameters) of all groups."""
        for key, optimizer in self.keyed:
            for group in optimizer.param_groups:
                yield key, group, self._prefixes_in(key, group)

    def groups_of_parameters(self) -> list[dict[str, int]]:
        """The number of the group of each parameter by all its names, for each optimizer."""
        return [{name: number for number, group in enumerate(optimizer.param_groups)
                 for parameter in group["params"]
                 for entry in [self.entry_of(parameter)] for name in (entry.name, *entry.aliases)}
                for optimizer in self._given]

    def options(self) -> list[Any]:
        """The options of all groups, as plain values."""
        return [group_options(key, group) for key, one in self.keyed for group in one.param_groups]

    def load_options(self, options: Sequence[Any]) -> None:
        """Gives all groups what options() has returned."""
        for (_, group, names), one in zip(self.named_groups(), options, strict=True):
            set_options(group, names[:1], {name: one for name in names[:1]})

    def places(self) -> dict[str, Place]:
        """The place of each parameter's slots, by slot prefix; one for each name of a parameter."""
        places: dict[str, Place] = {}
        for key, optimizer in self.keyed:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    entry = self.entry_of(parameter)
                    for prefix in slot_prefixes(key, entry):
                        places[prefix] = (entry, optimizer, group)
        return places

    def parameters(self) -> list[list[str]]:
        """The slot prefixes of each parameter, one for each name that the parameter has."""
        return [slot_prefixes(key, self.entry_of(parameter)) for key, optimizer in self.keyed
                for group in optimizer.param_groups for parameter in group["params"]]

    def slot_aliases(self, name: str, entry: Entry) -> tuple[str, ...]:
        """The other names of a slot whose parameter has several names."""
        for key, _ in self.keyed if entry.aliases else ():
            first, *others = slot_prefixes(key, entry)
            if name.startswith(first + "."):
                return tuple(other + name.removeprefix(first) for other in others)
        return ()

    def check(self) -> None:
        """TypeError or ValueError for optimizers that cannot be saved."""
        taken: set[str] = set()
        for key, optimizer in self.keyed:
            if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
                raise TypeError("optimizer: a ZeroRedundancyOptimizer; expected fully_shard()")
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    prefix = slot_prefix(key, self.entry_of(parameter))
                    if prefix in taken:
                        raise ValueError(f"{prefix}: in two optimizers; expected them by name: "
                                         'optimizer={"a": ..., "b": ...}')
                    taken.add(prefix)

    def expect_unchanged(self, detector: ChangeDetector) -> None:
        """Has the detector notice when a parameter gets or loses its state."""
        for _, optimizer in self.keyed:
            detector.expect_attribute(optimizer, "state")
            if has_global_state(optimizer):
                parameters = [k for k in optimizer.state if isinstance(k, torch.Tensor)]
                detector.expect_items(optimizer.state, parameters)
            else:
                detector.expect_values(optimizer.state)

    def forget(self) -> None:
        """Lets go of parameters that may have been replaced."""
        self._group_names = {}

    def _prefixes_in(self, key: str, group: dict[str, Any]) -> list[str]:
        # A wrapper and the optimizer inside it may share their groups, so the key counts, too.
        place, parameters = (key, id(group)), group["params"]
        seen, names = self._group_names.get(place, ([], []))
        if len(seen) != len(parameters) or not all(map(operator.is_, seen, parameters)):
            names = [slot_prefix(key, self.entry_of(p)) for p in parameters]
            self._group_names[place] = (list(parameters), names)
        return names


def slot_prefix(key: str, entry: Entry) -> str:
    """What names of a parameter's slots begin with: "optimizer.<parameter>"."""
    return join("optimizer", key, entry.name.removeprefix("model."))


def slot_prefixes(key: str, entry: Entry) -> list[str]:
    """The same for all names that the parameter has."""
    return [join("optimizer", key, name.removeprefix("model."))
            for name in (entry.name, *entry.aliases)]


def with_inner(optimizer: Any) -> Iterator[Any]:
    """The optimizer, and those that it wraps."""
    seen: list[Any] = []
    while hasattr(optimizer, "param_groups") and not any(optimizer is one for one in seen):
        yield optimizer
        seen.append(optimizer)
        inner = (getattr(optimizer, name, None) for name in _INNER)
        optimizer = next((one for one in inner if hasattr(one, "param_groups")), None)


def note_earlier_steps(optimizer: Any) -> None:
    """Tells torch's schedulers that the optimizer has made steps, in an earlier process.

    After a save at an epoch's end, the scheduler's step comes first in the new process, and torch
    would warn that it should come after a step of the optimizer.
    """
    for one in with_inner(optimizer):
        if isinstance(one, torch.optim.Optimizer):
            vars(one)["_opt_called"] = True


def with_own_states(keyed: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """(key, optimizer) of these optimizers, and of those inside them that have another state.

    An inner optimizer that was given by a key of its own is not listed again. Neither is one
    without a parameter of its wrapper: its parameters are copies (in another dtype), and only the
    wrapper's own state_dict() knows to which parameters they belong.
    """
    found = list(keyed)
    for key, outer in list(found):
        for inner in list(with_inner(outer))[1:]:
            key = join(key, _KEY)
            if hasattr(inner, "state") and not _is_among(inner, found) and _share(outer, inner):
                found.append((key, inner))
    return found


def is_inner(name: str) -> bool:
    """True for the name of a slot, or of a parameter, of an inner optimizer."""
    return _KEY in name.split(".")


def _is_among(inner: Any, found: list[tuple[str, Any]]) -> bool:
    return any(inner is one or inner.state is getattr(one, "state", None) for _, one in found)


def _share(outer: Any, inner: Any) -> bool:
    """True if both have a parameter in common."""
    ids = {id(parameter) for parameter in _parameters(outer)}
    return any(id(parameter) in ids for parameter in _parameters(inner))


def _parameters(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
