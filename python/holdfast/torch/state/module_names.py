"""One name for each parameter and buffer, whatever wraps the model.

DDP, torch.compile and activation checkpointing put words into names. These words are left out,
by the type of the wrapper, so that a user's own module that is called "module" keeps its name. A
tensor that the model knows by several names (tied weights) has the first as its name and the
others as aliases. Buffers are listed even if a state_dict would not have them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.torch.values.dotted_names import join
from holdfast.torch.values.wrappers import hides

Renaming = Mapping[str, str] | Callable[[str], str]


@dataclass
class Entry:
    """A parameter or buffer: its name, and where the module tree keeps it."""

    name: str
    kept: torch.Tensor = field(repr=False)  # the tensor when the model was walked
    module: nn.Module = field(repr=False)
    attribute: str
    is_parameter: bool
    ddp: DistributedDataParallel | None = field(repr=False)  # the innermost one around it
    ddp_name: str  # its name inside that DDP module
    aliases: list[str] = field(default_factory=list)

    @property
    def container(self) -> dict[str, torch.Tensor | None]:
        """The dict of the module that holds it."""
        return self.module._parameters if self.is_parameter else self.module._buffers

    @property
    def is_transient(self) -> bool:
        """True for a buffer that the module's state_dict() leaves out."""
        return not self.is_parameter and self.attribute in self.module._non_persistent_buffers_set

    @property
    def live(self) -> torch.Tensor | None:
        """The tensor that the module has now. FSDP may have put the gathered one there."""
        return self.container.get(self.attribute)


def entries_of(module: nn.Module, renaming: Renaming | None = None) -> list[Entry]:
    """All parameters and buffers, in the model's order."""
    found: dict[int, Entry] = {}
    for entry in _walk(module, "", None, ""):
        entry.name = rename(entry.name, renaming)
        first = found.setdefault(id(entry.kept), entry)
        if first is not entry and entry.name != first.name and entry.name not in first.aliases:
            first.aliases.append(entry.name)
    return list(found.values())


def collect_entries(
    models: Iterable[tuple[str, nn.Module]],
    names: Renaming | Sequence[Renaming | None] | None,
) -> list[Entry]:
    """The entries of all models, named "model.<key>.<name>".

    `names` is one renaming for all models, or a list with one for each. ValueError if two
    tensors have one name.
    """
    by_tensor: dict[int, Entry] = {}
    by_name: dict[str, Entry] = {}
    for index, (key, module) in enumerate(models):
        renaming = names[index] if isinstance(names, (list, tuple)) else names
        for entry in entries_of(module, renaming):  # type: ignore[arg-type]
            entry.name = join("model", key, entry.name)
            entry.aliases = [join("model", key, alias) for alias in entry.aliases]
            first = by_tensor.setdefault(id(entry.kept), entry)
            if first is not entry:
                first.aliases += [n for n in (entry.name, *entry.aliases)
                                  if n != first.name and n not in first.aliases]
            for name in (entry.name, *entry.aliases):
                if by_name.setdefault(name, first) is not first:
                    raise ValueError(f"{name}: two tensors have this name; expected "
                                     'model={"generator": ..., "critic": ...} for several models, '
                                     'or, for pipeline stages, layout=holdfast.Layout(names='
                                     '[{"0": "layers.4"}, ...]), one map for each stage')
    return list(by_tensor.values())


def by_key(given: Any) -> list[tuple[str, Any]]:
    """(key, module or optimizer) of one, a list or a dict; a pipeline stage is its module."""
    if isinstance(given, Mapping):
        if odd := [key for key in given if not isinstance(key, str)]:
            raise TypeError(f"{odd[0]!r}: the key of a module or an optimizer; expected text")
        return list(given.items())
    several = isinstance(given, (list, tuple))  # not Sequence: a module may be one, too
    return [("", getattr(item, "submod", item)) for item in (given if several else [given])]


def reshard(module: nn.Module) -> None:
    """Has FSDP put its sharded parameters back; an evaluation may have left gathered ones."""
    for child in _fully_sharded(module):
        child.reshard()


def gathering_modules(module: nn.Module) -> set[int]:
    """The ids of all modules in which FSDP puts gathered parameters in place of sharded ones."""
    return {id(inside) for child in _fully_sharded(module) for inside in child.modules()}


def _fully_sharded(module: nn.Module) -> list[Any]:
    return [child for child in module.modules() if hasattr(child, "_get_fsdp_state")]


def find_wrappers(module: nn.Module) -> dict[str, DistributedDataParallel]:
    """The DDP modules inside a model, by the name of what they wrap ("" for the model itself)."""
    found: dict[str, DistributedDataParallel] = {}
    for name, child, ddp, _ in _modules(module, "", None, ""):
        if ddp is not None and child is ddp:
            found.setdefault(name, ddp)
    return found


def modules_of(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module under every name, in the model's order."""
    for name, child, _, _ in _modules(module, "", None, ""):
        yield name, child


def rename(name: str, renaming: Renaming | None) -> str:
    """Renames by a function, or by a map: the longest prefix of whole words is replaced.

        >>> rename("0.weight", {"0": "layers.4"})
        'layers.4.weight'
    """
    if renaming is None:
        return name
    if callable(renaming):
        return renaming(name)
    for prefix in sorted(renaming, key=len, reverse=True):
        if name == prefix or prefix == "" or name.startswith(prefix + "."):
            return join(renaming[prefix], name[len(prefix):].removeprefix("."))
    return name


_Place = tuple[str, nn.Module, DistributedDataParallel | None, str]


def _modules(module: nn.Module, name: str, ddp: DistributedDataParallel | None,
             inside: str) -> Iterator[_Place]:
    """Every module under every name: (name, module, DDP around it, name inside the DDP)."""
    if type(module).__name__ == "FullyShardedDataParallel":
        raise TypeError(f"{name or 'model'}: a FullyShardedDataParallel; expected fully_shard()")
    if isinstance(module, DistributedDataParallel):
        ddp, inside = module, ""
    yield name, module, ddp, inside
    for key, child in module._modules.items():
        if child is None:
            continue
        # DDP lists what it ignores by the names of its module, with other wrappers in them.
        within = "" if module is ddp else join(inside, key)
        shown = name if hides(module, key) else join(name, key)
        yield from _modules(child, shown, ddp, within)


def _walk(module: nn.Module, name: str, ddp: DistributedDataParallel | None,
          inside: str) -> Iterator[Entry]:
    for place, child, around, within in _modules(module, name, ddp, inside):
        for is_parameter, held in ((True, child._parameters), (False, child._buffers)):
            for key, tensor in held.items():
                if tensor is not None:
                    yield Entry(join(place, key), tensor, child, key, is_parameter, around,
                                join(within, key))
