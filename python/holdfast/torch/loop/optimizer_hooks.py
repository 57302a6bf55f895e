"""When optimizers update: hooks around every step() of every optimizer of the process."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)


def hook_updates(before: Callable[..., Any], after: Callable[..., None]) -> list[Any]:
    """Calls methods of an object that lives: before(optimizer, args, kwargs), after(optimizer).

    Global hooks come before those of an optimizer, and for all kinds of steps. What `before`
    returns are other arguments for step(), or None.
    """
    first, then = weakref.WeakMethod(before), weakref.WeakMethod(after)

    def on_begin(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        call = first()
        return None if call is None else call(optimizer, args, kwargs)

    def on_end(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        call = then()
        if call is not None:
            call(optimizer)

    return [register_optimizer_step_pre_hook(on_begin), register_optimizer_step_post_hook(on_end)]


def with_closure(args: Any, kwargs: Any, change: Callable[[Any], Any]) -> Any:
    """The arguments of a step() with another closure; None if it has none."""
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": change(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):  # behind the optimizer itself
        return (args[0], change(args[1]), *args[2:]), kwargs
    return None
