"""The first step of a pipeline schedule, in which stages tell each other their shapes.

Survivors have done that long ago. So it counts as start-up: the first process of a rank keeps what
it was told, and a replacement is answered from that (call_log.py). Stages without static shapes
also make a forward pass on memory that nobody has filled, which must not change the buffers and random
generators of a replacement, unless it makes the very first update again.
"""

import functools
from collections.abc import Callable
from typing import Any

from torch.distributed.pipelining import schedules

from holdfast.torch.recover import micro_batches
from holdfast.torch.recover.flat_copy import FlatCopy
from holdfast.torch.recover.group import Groups
from holdfast.torch.values import generators as random_generators


def install(groups: Groups, *, is_replacement: bool) -> None:
    """Called once in a new worker."""
    micro_batches.install()
    as_startup = functools.partial(_as_startup, groups, is_replacement)
    schedule = schedules._PipelineSchedule
    initialize = getattr(schedule, "_initialize_pp_stages", None)
    if initialize is None:
        return _install_in_older_torch(as_startup)

    def initialize_once(self: Any, stages: Any, args: Any, kwargs: Any, target: Any,
                        forward: bool, backward: bool, **more: Any) -> Any:
        arguments = (self, stages, args, kwargs, target, forward, backward)
        if forward and self._has_backward == backward:
            return initialize(*arguments, **more)
        return as_startup(stages, functools.partial(initialize, *arguments, **more))

    schedule._initialize_pp_stages = initialize_once


def _install_in_older_torch(as_startup: Callable[[Any, Callable[[], Any]], Any]) -> None:
    """As install(), before torch 2.13."""
    for kind, name, stages, flags in (
            (schedules.PipelineScheduleSingle, "_initialize_stage", "_stage", "_stage"),
            (schedules.PipelineScheduleMulti, "_initialize_stages", "_stages", "_stages")):
        if hasattr(kind, name):  # else all ranks restart if a rank dies
            setattr(kind, name, _initialize_once(getattr(kind, name), stages, flags, as_startup))


def _initialize_once(initialize: Callable[..., Any], stages: str, flags: str,
                     as_startup: Callable[[Any, Callable[[], Any]], Any]) -> Callable[..., Any]:
    def initialize_once(self: Any, *args: Any, **more: Any) -> Any:
        forward, backward = (getattr(self, f"{flags}_{way}_initialized", False) for way in ("forward", "backward"))
        make = functools.partial(initialize, self, *args, **more)
        if forward and (backward or not self._has_backward):
            return make()
        these = getattr(self, stages)
        return as_startup(these if isinstance(these, list) else [these], make)

    return initialize_once


def _as_startup(groups: Groups, is_replacement: bool, stages: Any, make: Callable[[], Any]) -> Any:
    """What `make` makes, whose calls count as start-up."""
    buffers = FlatCopy([one.detach() for stage in stages for one in stage.submod.buffers()])
    buffers.take()
    drawn = random_generators.capture({})
    with groups.startup(is_replacement):
        made = make()
    if is_replacement and groups.log.update != 1:
        buffers.put_back()
        random_generators.restore(drawn, {})
    return made
