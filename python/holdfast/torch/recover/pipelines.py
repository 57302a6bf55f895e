"""The first step of a pipeline schedule, in which stages tell each other their shapes.

Survivors have done that long ago. So it counts as start-up: the first process of a rank keeps what
it was told, and a replacement is answered from that (call_log.py). Stages without static shapes
also make a forward pass on memory that nobody has filled, which must not change the buffers and random
generators of a replacement, unless it makes the very first update again.
"""

from typing import Any

from torch.distributed.pipelining import schedules

from holdfast.torch.recover.flat_copy import FlatCopy
from holdfast.torch.recover.group import Groups
from holdfast.torch.values import generators as random_generators


def install(groups: Groups, *, is_replacement: bool) -> None:
    """Called once in a new worker."""
    schedule = schedules._PipelineSchedule
    initialize = getattr(schedule, "_initialize_pp_stages", None)
    if initialize is None:  # another version of torch: all ranks restart if a rank dies
        return

    def initialize_once(self: Any, stages: Any, args: Any, kwargs: Any, target: Any,
                        forward: bool, backward: bool, **more: Any) -> Any:
        arguments = (self, stages, args, kwargs, target, forward, backward)
        if forward and self._has_backward == backward:
            return initialize(*arguments, **more)
        buffers = FlatCopy([one.detach() for stage in stages for one in stage.submod.buffers()])
        buffers.take()
        drawn = random_generators.capture({})
        with groups.startup(is_replacement):
            made = initialize(*arguments, **more)
        if is_replacement and groups.log.update != 1:
            buffers.put_back()
            random_generators.restore(drawn, {})
        return made

    schedule._initialize_pp_stages = initialize_once
