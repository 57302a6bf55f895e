"""What modules keep beside parameters and buffers.

A module may return an extra state from get_extra_state(), or add entries to its state_dict in a
_save_to_state_dict() of its own (module_state_dicts.py). The extra state has the name that torch
gives it, "model.<module>._extra_state"; added entries are "model.<module>._state_dict". Each rank
saves its own and gets its own back. If ranks or stages are cut in another way, a rank gets what
the first rank with that module saved.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from holdfast.torch.state.module_names import Renaming, by_key, modules_of, rename
from holdfast.torch.state.module_state_dicts import entries_added_by, load_added_entries, overrides
from holdfast.torch.state.piece import Piece
from holdfast.torch.state.stateful import Stateful
from holdfast.torch.values.dotted_names import join, own_name
from holdfast.torch.values.dtypes import SavedTensor
from holdfast.torch.values.trees import pack, rename_tensors

_ROOT = "model"


class ExtraState:
    """The extra state of all modules that have one, by the names of the modules."""

    def __init__(self, models: Any, names: Renaming | Sequence[Renaming | None] | None) -> None:
        self._modules = _once(_with_extra(models, names))
        self._adding = _once(_with_own_dict(models, names))
        self.not_loaded: list[str] = []  # names of entries that a module did not load
        self._stateful = Stateful(_ROOT, self)
        for name, module in self._adding.items():  # refuses now what could not be stored
            pack(entries_added_by(module), join(_ROOT, name))

    @property
    def names(self) -> set[str]:
        """The names in a checkpoint of what get_extra_state() returns."""
        return {join(_ROOT, name) for name in self._modules}

    @property
    def all_names(self) -> set[str]:
        """All names that a checkpoint of these modules may have."""
        return {join(_ROOT, name) for name in (*self._modules, *self._adding)}

    def capture(self) -> tuple[Any, list[Piece]]:
        """The plain values by module, and the tensors."""
        tree, pieces = self._stateful.capture()
        for piece in pieces:
            if tuple(piece.tensor.shape) != tuple(piece.shape):
                raise TypeError(f"{piece.name}: a part of a DTensor; expected a plain tensor")
        return tree, pieces

    def allocate(self, rank: int, trees: Sequence[Mapping[str, Any]],
                 saved: Mapping[str, SavedTensor]) -> list[Piece]:
        """Memory for the tensors, as pieces to fill; `trees` are what the ranks captured."""
        chosen: dict[str, Any] = {}
        mine = rank % len(trees)
        for other in sorted(range(len(trees)), key=lambda one: one != mine):
            in_checkpoint = partial(_name_in, other, saved)
            for name, node in trees[other].items():
                known = name in self._modules or name in self._adding
                if known and name not in chosen:
                    chosen[name] = rename_tensors(node, in_checkpoint)
        return self._stateful.allocate(chosen, saved)

    def load(self) -> None:
        """Gives each module its state, after the pieces of allocate() are filled."""
        self._stateful.load()

    def state_dict(self) -> dict[str, Any]:
        """What Stateful saves: the states by the names of the modules."""
        added = {name: entries_added_by(module) for name, module in self._adding.items()}
        return {**{name: module.get_extra_state() for name, module in self._modules.items()},
                **{name: values for name, values in added.items() if values}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Has each module load its state; `not_loaded` names what a module left out."""
        for name, module in self._modules.items():
            if name in state:
                module.set_extra_state(state[name])
        self.not_loaded = []
        for name, module in self._adding.items():
            added = state.get(name, {})
            left = {*(load_added_entries(module, added) if added else ()),
                    *(entries_added_by(module).keys() - added.keys())}
            self.not_loaded += [join(_ROOT, name.removesuffix("_state_dict") + one)
                                for one in sorted(left)]


def extra_state_names(trees: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of all extra states that the ranks captured."""
    return sorted({join(_ROOT, name) for tree in trees for name in tree})


def differing_extra_states(trees: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of extra states that several ranks captured with different values."""
    values: dict[str, set[str]] = {}
    for tree in trees:
        for name, node in tree.items():
            values.setdefault(join(_ROOT, name), set()).add(repr(node))
    return sorted(name for name, texts in values.items() if len(texts) > 1)


def _once(found: Iterable[tuple[str, nn.Module]]) -> dict[str, nn.Module]:
    """The modules by name; a module with several names has the first of them."""
    modules: dict[str, nn.Module] = {}
    seen: set[int] = set()
    for name, module in found:
        if id(module) in seen:
            continue
        if name in modules:
            raise ValueError(f"{join(_ROOT, name)}: two modules have this name; expected "
                             'layout=holdfast.Layout(names=[{"0": "layers.4"}, ...]), one map for '
                             "each stage")
        seen.add(id(module))
        modules[name] = module
    return modules


def _with_extra(models: Any, names: Any) -> Iterator[tuple[str, nn.Module]]:
    for name, module in _named(models, names, "_extra_state"):
        if overrides(module, "get_extra_state"):
            if not overrides(module, "set_extra_state"):
                raise TypeError(f"{join(_ROOT, name)}: a {type(module).__name__} with "
                                "get_extra_state() alone; expected set_extra_state(), too")
            yield name, module


def _with_own_dict(models: Any, names: Any) -> Iterator[tuple[str, nn.Module]]:
    for name, module in _named(models, names, "_state_dict"):
        if overrides(module, "_save_to_state_dict"):
            yield name, module


def _named(models: Any, names: Any, what: str) -> Iterator[tuple[str, nn.Module]]:
    for index, (key, model) in enumerate(by_key(models)):
        renaming = names[index] if isinstance(names, (list, tuple)) else names
        for place, module in modules_of(model):
            yield join(key, rename(join(place, what), renaming)), module


def _name_in(rank: int, saved: Mapping[str, SavedTensor], name: str) -> str:
    own = own_name(name, rank)
    return own if own in saved else name
