"""What modules keep beside parameters and buffers: nn.Module.get_extra_state().

It has the name that torch gives it, "model.<module>._extra_state", and is a rank's own: it
comes back to the rank that saved it. Where ranks or stages are cut in another way, it is
that of the first rank that had the module.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from holdfast.torch.holders import Holder
from holdfast.torch.names import Renaming, by_key, join, modules_of, own_name, rename
from holdfast.torch.pieces import Piece, Saved
from holdfast.torch.trees import renamed

_ROOT = "model"


class ExtraState:
    """That of all modules that have some, by the names of the modules."""

    def __init__(self, models: Any, names: Renaming | Sequence[Renaming | None] | None) -> None:
        self._modules: dict[str, nn.Module] = {}
        seen: set[int] = set()
        for name, module in _with_extra(models, names):
            if id(module) in seen:  # one module at two places
                continue
            if name in self._modules:
                raise ValueError(f"{join(_ROOT, name)}: two modules have it, want names= with a "
                                 'map such as {"0": "layers.4"} for each stage')
            seen.add(id(module))
            self._modules[name] = module
        self._holder = Holder(_ROOT, self)

    @property
    def names(self) -> set[str]:
        """Those in a checkpoint."""
        return {join(_ROOT, name) for name in self._modules}

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
                if name in self._modules and name not in chosen:
                    chosen[name] = renamed(node, in_checkpoint)
        return self._holder.make_room(chosen, saved)

    def load(self) -> None:
        """Gives the modules theirs, when the pieces of make_room() are filled."""
        self._holder.load()

    def state_dict(self) -> dict[str, Any]:
        """For the holder."""
        return {name: module.get_extra_state() for name, module in self._modules.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """For the holder."""
        for name, module in self._modules.items():
            if name in state:
                module.set_extra_state(state[name])


def names_of(trees: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of all that ranks captured."""
    return sorted({join(_ROOT, name) for tree in trees for name in tree})


def _with_extra(models: Any, names: Any) -> Iterator[tuple[str, nn.Module]]:
    for index, (key, model) in enumerate(by_key(models)):
        renaming = names[index] if isinstance(names, (list, tuple)) else names
        for place, module in modules_of(model):
            if _overrides(module, "get_extra_state"):
                name = join(key, rename(join(place, "_extra_state"), renaming))
                if not _overrides(module, "set_extra_state"):
                    raise TypeError(f"{join(_ROOT, name)}: a {type(module).__name__} with "
                                    "get_extra_state() alone, want set_extra_state() too")
                yield name, module


def _overrides(module: nn.Module, method: str) -> bool:
    return getattr(type(module), method, None) is not getattr(nn.Module, method)


def _name_in(rank: int, saved: Mapping[str, Saved], name: str) -> str:
    own = own_name(name, rank)
    return own if own in saved else name
