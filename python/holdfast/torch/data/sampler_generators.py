"""Samplers, and the generators and the epoch's number from which they make the order of an epoch."""

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from holdfast.torch.values import generators
from holdfast.torch.values.generators import is_generator


class SamplerGenerators:
    """The generators that samplers own, and those of the process that they may draw from.

    torch's default generator and the attributes `generator` of loader and samplers are kept apart,
    as earlier versions of Holdfast saved only these.
    """

    def __init__(self, loader: Any, samplers: list[Any]) -> None:
        self.owned = generators_of([loader, *samplers])
        self._others = {f"{number}.{name}": one for number, sampler in enumerate(samplers)
                        for name, one in _attributes(sampler)
                        if is_generator(one) and not _is_known(name, one)}

    @property
    def replayed(self) -> list[Any]:
        """The generators whose states are saved and set with the order of an epoch."""
        return [*self.owned, *self._others.values()]

    def capture(self) -> dict[str, Any]:
        """The states of all of them."""
        return {"default": state_of(torch.default_generator), **self.capture_owned()}

    def capture_owned(self) -> dict[str, Any]:
        """The states of all but torch's default generator."""
        return {"generators": [state_of(one) for one in self.owned],
                "drawn": generators.capture_for_order(self._others)}

    def restore(self, saved: dict[str, Any]) -> None:
        """Sets them to what was captured; those that are not there, or not saved, stay."""
        set_states([torch.default_generator], [saved["default"]])
        self.restore_owned(saved)
        if "drawn" in saved:
            generators.restore_for_order(saved["drawn"], {})

    def restore_owned(self, saved: dict[str, Any]) -> None:
        """Sets only those that loader and samplers own."""
        set_states(self.owned, saved["generators"])
        if "drawn" in saved:
            generators.restore_extra(saved["drawn"]["extra"], self._others)

    @contextlib.contextmanager
    def keeping_process(self) -> Iterator[None]:
        """Puts torch's, Python's and NumPy's own generators back at the end."""
        default, drawn = torch.default_generator.get_state(), generators.capture_for_order({})
        try:
            yield
        finally:
            torch.default_generator.set_state(default)
            generators.restore_for_order(drawn, {})

    def at_first_draw(self, start: dict[str, Any]) -> None:
        """Called before a sampler gives its first index, as most samplers draw then.

        Loaders that are read together draw in between, so that the states may be other ones than
        when the epoch began. Then `start` gets them; if it has them, they are restored.
        """
        if "first" in start:
            self.restore(start["first"])
            return
        now = self.capture()
        if any(now[key] != start[key] for key in now if key in start):
            start["first"] = now


def _attributes(sampler: Any) -> list[tuple[str, Any]]:
    """The attributes that the object itself holds. No property is called."""
    try:
        return list(object.__getattribute__(sampler, "__dict__").items())
    except AttributeError:
        return []


def _is_known(name: str, one: Any) -> bool:
    """True for generators that are saved elsewhere: torch's, and those of the whole process."""
    if isinstance(one, torch.Generator):
        return name == "generator" or one is torch.default_generator
    numpy = sys.modules.get("numpy")
    return one is random._inst or (numpy is not None and one is numpy.random.mtrand._rand)


def chain(sampler: Any) -> list[Any]:
    """The sampler, the sampler inside it, and so on."""
    chain = [sampler]
    while (inner := getattr(chain[-1], "sampler", None)) is not None and inner not in chain:
        chain.append(inner)
    return chain


def generators_of(owners: list[Any]) -> list[torch.Generator]:
    """The generators that the loader owns. A Checkpointer saves those of the process."""
    found: list[torch.Generator] = []
    for owner in owners:
        generator = getattr(owner, "generator", None)
        own = isinstance(generator, torch.Generator) and generator is not torch.default_generator
        if own and not any(generator is other for other in found):
            found.append(generator)
    return found


def state_of(generator: torch.Generator) -> bytes:
    """The state of a generator as bytes."""
    return generator.get_state().numpy().tobytes()


def set_states(owned: list[torch.Generator], states: list[bytes]) -> None:
    """Sets the states of generators."""
    for generator, state in zip(owned, states, strict=True):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def epochs_of(samplers: list[Any]) -> list[int | None]:
    """The numbers of the epoch that samplers show; None for those that show none."""
    return [getattr(sampler, "epoch", None) for sampler in samplers]


def set_epochs(samplers: list[Any], epochs: list[int | None]) -> None:
    """Tells samplers the number of the epoch."""
    for sampler, epoch in zip(samplers, epochs, strict=True):
        if epoch is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
