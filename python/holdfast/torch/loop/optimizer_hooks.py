"""Hooks around every step() of every optimizer of the process."""

import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)


def hook_optimizer_steps(before: MethodType, after: MethodType) -> list[Any]:
    """Calls before(optimizer, args, kwargs) and after(optimizer), while their object lives.

    Global hooks run before those of one optimizer, and for all kinds of steps. `before` returns
    other arguments for step(), or None.
    """
    # weakref.WeakMethod does the same, and makes a new method in Python code at each call.
    first, begin = weakref.ref(before.__self__), before.__func__
    then, end = weakref.ref(after.__self__), after.__func__

    def on_begin(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        owner = first()
        return None if owner is None else begin(owner, optimizer, args, kwargs)

    def on_end(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        owner = then()
        if owner is not None:
            end(owner, optimizer)

    return [register_optimizer_step_pre_hook(on_begin), register_optimizer_step_post_hook(on_end)]


def call_before_scaler_updates(scaler: Any, call: Callable[[], None]) -> None:
    """Calls the function before scaler.update(): a GradScaler that skips an update calls no hook."""
    update = scaler.update

    def guarded(*args: Any, **kwargs: Any) -> Any:
        call()
        return update(*args, **kwargs)

    scaler.update = guarded


def replace_closure(args: Any, kwargs: Any, change: Callable[[Any], Any]) -> Any:
    """The arguments of a step() with the closure replaced; None if it has no closure."""
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": change(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):  # the first is the optimizer
        return (args[0], change(args[1]), *args[2:]), kwargs
    return None
