"""What modules keep beside parameters and buffers: nn.Module.get_extra_state(), and what they
put into a state_dict by a _save_to_state_dict() of their own (module_state_dicts.py).

The first has the name that torch gives it, "model.<module>._extra_state", the other is
"model.<module>._state_dict". Both are a rank's own: they come back to the rank that saved
them. Where ranks or stages are cut in another way, they are those of the first rank that had
the module.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from holdfast.torch.state.module_names import Renaming, by_key, modules_of, rename
from holdfast.torch.state.module_state_dicts import added_by, overrides, put_back
from holdfast.torch.state.piece import Piece
from holdfast.torch.state.stateful import Holder
from holdfast.torch.values.dotted_names import join, own_name
from holdfast.torch.values.dtypes import Saved
from holdfast.torch.values.trees import pack, renamed

_ROOT = "model"


class ExtraState:
    """That of all modules that have some, by the names of the modules."""

    def __init__(self, models: Any, names: Renaming | Sequence[Renaming | None] | None) -> None:
        self._modules = _once(_with_extra(models, names))
        self._adding = _once(_with_own_dict(models, names))
        self.not_taken: list[str] = []  # names of what a module has not loaded
        self._holder = Holder(_ROOT, self)
        for name, module in self._adding.items():  # what cannot be stored is said at once
            pack(added_by(module), join(_ROOT, name))

    @property
    def names(self) -> set[str]:
        """Those of what get_extra_state() gives, in a checkpoint."""
        return {join(_ROOT, name) for name in self._modules}

    @property
    def all_names(self) -> set[str]:
        """Those that may be in a checkpoint."""
        return {join(_ROOT, name) for name in (*self._modules, *self._adding)}

    def capture(self) -> tuple[Any, list[Piece]]:
        """Its plain values by module, and its tensors."""
        tree, pieces = self._holder.capture()
        for piece in pieces:
            if tuple(piece.tensor.shape) != tuple(piece.shape):
                raise TypeError(f"{piece.name}: a part of a DTensor, want a plain tensor")
        return tree, pieces

    def make_room(self, rank: int, trees: Sequence[Mapping[str, Any]],
                  saved: Mapping[str, Saved]) -> list[Piece]:
        """Memory for its tensors, as pieces to fill; `trees` are those that ranks captured."""
        chosen: dict[str, Any] = {}
        mine = rank % len(trees)
        for other in sorted(range(len(trees)), key=lambda one: one != mine):
            in_checkpoint = partial(_name_in, other, saved)
            for name, node in trees[other].items():
                known = name in self._modules or name in self._adding
                if known and name not in chosen:
                    chosen[name] = renamed(node, in_checkpoint)
        return self._holder.make_room(chosen, saved)

    def load(self) -> None:
        """Gives the modules theirs, when the pieces of make_room() are filled."""
        self._holder.load()

    def state_dict(self) -> dict[str, Any]:
        """For the holder."""
        added = {name: added_by(module) for name, module in self._adding.items()}
        return {**{name: module.get_extra_state() for name, module in self._modules.items()},
                **{name: values for name, values in added.items() if values}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """For the holder."""
        for name, module in self._modules.items():
            if name in state:
                module.set_extra_state(state[name])
        self.not_taken = []
        for name, module in self._adding.items():
            added = state.get(name, {})
            left = {*(put_back(module, added) if added else ()),
                    *(added_by(module).keys() - added.keys())}
            self.not_taken += [join(_ROOT, name.removesuffix("_state_dict") + one)
                               for one in sorted(left)]


def names_of(trees: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of all that ranks captured."""
    return sorted({join(_ROOT, name) for tree in trees for name in tree})


def differing(trees: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of what several ranks captured with different values."""
    values: dict[str, set[str]] = {}
    for tree in trees:
        for name, node in tree.items():
            values.setdefault(join(_ROOT, name), set()).add(repr(node))
    return sorted(name for name, texts in values.items() if len(texts) > 1)


def _once(found: Iterable[tuple[str, nn.Module]]) -> dict[str, nn.Module]:
    """By name, each module at the first of the places where it is."""
    modules: dict[str, nn.Module] = {}
    seen: set[int] = set()
    for name, module in found:
        if id(module) in seen:
            continue
        if name in modules:
            raise ValueError(f"{join(_ROOT, name)}: two modules have it, want names= with a "
                             'map such as {"0": "layers.4"} for each stage')
        seen.add(id(module))
        modules[name] = module
    return modules


def _with_extra(models: Any, names: Any) -> Iterator[tuple[str, nn.Module]]:
    for name, module in _named(models, names, "_extra_state"):
        if overrides(module, "get_extra_state"):
            if not overrides(module, "set_extra_state"):
                raise TypeError(f"{join(_ROOT, name)}: a {type(module).__name__} with "
                                "get_extra_state() alone, want set_extra_state() too")
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


def _name_in(rank: int, saved: Mapping[str, Saved], name: str) -> str:
    own = own_name(name, rank)
    return own if own in saved else name
