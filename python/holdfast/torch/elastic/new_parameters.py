"""Gives the optimizers of a job the parameters of another model object."""

from collections.abc import Collection
from typing import Any

from holdfast.errors import NotFoundError
from holdfast.torch.state.module_names import by_key, collect_entries


class KeptParameters:
    """The parameters and states that optimizers have now."""

    def __init__(self, optimizers: Any) -> None:
        keyed = [] if optimizers is None else by_key(optimizers)
        self._kept = [(one, one.state.copy(), [list(group["params"]) for group in one.param_groups])
                      for _, one in keyed]

    def put_back(self) -> None:
        """Gives them back."""
        for optimizer, state, parameters in self._kept:
            optimizer.state.clear()
            optimizer.state.update(state)
            for group, own in zip(optimizer.param_groups, parameters, strict=True):
                group["params"] = own


def give_parameters(optimizers: Any, models: Any, names: Any, groups: list[dict[str, int]],
                    held: Collection[str]) -> None:
    """Each parameter goes into the group that its name had on any rank. States begin empty.

    The optimizers stay the same objects, so that schedulers, scalers and hooks are still valid. `held` are
    the names of the tensors that workers have. ValueError if a parameter needs a gradient, and no optimizer
    had it; NotFoundError if no worker has it any more.
    """
    if optimizers is None:
        return
    entries = [one for one in collect_entries(by_key(models), names) if one.is_parameter]
    known = {name for of_one in groups for name in of_one}
    for entry in entries:
        if entry.kept.requires_grad and known.isdisjoint([entry.name, *entry.aliases]):
            if entry.name not in held:
                raise NotFoundError(f"{entry.name}: no worker that is left has it")
            raise ValueError(f"{entry.name}: no optimizer had it before the change; expected build() to make "
                             "the same model for every mesh")
    for (_, optimizer), of_one in zip(by_key(optimizers), groups, strict=True):
        parameters: list[list[Any]] = [[] for _ in optimizer.param_groups]
        for entry in entries:
            found = [of_one[name] for name in (entry.name, *entry.aliases) if name in of_one]
            if found:
                parameters[found[0]].append(entry.kept)
        optimizer.state.clear()
        for group, own in zip(optimizer.param_groups, parameters, strict=True):
            group["params"] = own


