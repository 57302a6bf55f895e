"""Gradients that wait for an update, in a save that cannot wait for that update.

Each rank saves its own gradients, because ranks may not have averaged them yet, and they are
restored only on as many ranks as saved. A resume names gradients that could not be saved.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from holdfast.torch.values.boxes import local_of

KEY = "_gradients"  # the key of the object in a checkpoint


class Gradients:
    """The gradients of all parameters that have one, by name, as an object with a state_dict."""

    def __init__(self, parameters: Mapping[str, torch.Tensor], models: list[Any]) -> None:
        self._parameters = parameters
        self._models = models

    def state_dict(self) -> dict[str, Any]:
        """The gradients that can be saved, and sentences about those that cannot."""
        unreduced = any(map(has_unreduced_gradients, self._models))
        lost = ["gradients that FSDP has not reduced"] if unreduced else []
        found: dict[str, torch.Tensor] = {}
        for name, parameter in self._parameters.items():
            gradient = parameter.grad
            if gradient is None:
                continue
            if is_like(gradient, parameter):
                found[name] = local_of(gradient)
            else:
                lost.append(f"the gradient of {name}")
        return {"of": found, "lost": lost}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Sets the gradients; parameters that had none when it was saved have none."""
        for name, parameter in self._parameters.items():
            saved = state["of"].get(name)
            parameter.grad = None if saved is None else gradient_like(parameter, saved)


def is_like(gradient: torch.Tensor, parameter: torch.Tensor) -> bool:
    """True if the gradient is dense, and cut over ranks as its parameter is."""
    if isinstance(parameter, DTensor) or isinstance(gradient, DTensor):
        return (isinstance(parameter, DTensor) and isinstance(gradient, DTensor)
                and gradient.placements == parameter.placements)
    return gradient.layout == torch.strided


def gradient_like(parameter: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
    """A gradient of the parameter with these local values, cut over ranks as the parameter is."""
    gradient = torch.empty_like(parameter.detach(), dtype=saved.dtype)
    with torch.no_grad():
        local_of(gradient).copy_(saved)
    return gradient


def has_unreduced_gradients(model: Any) -> bool:
    """True if FSDP keeps gradients that are not reduced yet, which no `.grad` shows."""
    return any(map(_is_unreduced, _of_fsdp(model)))


def gathered(models: Iterable[Any]) -> dict[int, torch.Tensor]:
    """Where the backward pass makes the gradients of parameters that FSDP cuts, by the ids of these."""
    found = {id(one.sharded_param): getattr(one, "_unsharded_param", None) for model in models
             for one in _of_fsdp(model)}
    return {key: one for key, one in found.items() if one is not None and one.requires_grad}


def _of_fsdp(model: Any) -> Iterator[Any]:
    """The parameters of a model as FSDP has them."""
    for module in model.modules() if isinstance(model, torch.nn.Module) else ():
        if isinstance(module, FSDPModule):
            yield from getattr(module._get_fsdp_state()._fsdp_param_group, "fsdp_params", ())


def _is_unreduced(parameter: Any) -> bool:
    gathered = getattr(parameter, "_unsharded_param", None)
    return (getattr(parameter, "unsharded_accumulated_grad", None) is not None
            or getattr(gathered, "grad", None) is not None)


def inexact(ranks: Sequence[Mapping[str, Any]], world: int) -> list[str]:
    """Sentences about gradients that waited for an update then, and were not restored.

    `ranks` are the objects of each rank that saved, and there are `world` ranks now.
    """
    trees = [own.get(KEY) for own in ranks]
    lines = {line for tree in trees if tree is not None for line in tree["lost"]}
    if any(trees) and len(trees) != world:
        lines = {f"the gradients, which {len(trees)} ranks saved (now there are {world})"}
    return [f"saved in the middle of an update, without {line}" for line in sorted(lines)]
