"""Holdfast as the storage of torch.distributed.checkpoint (DCP).

    writer = holdfast.torch.dcp.Writer("runs/gpt")                # once, on all ranks
    dcp.save(state, checkpoint_id=step, storage_writer=writer, planner=SavePlanner())
    dcp.load(state, storage_reader=Reader("runs/gpt"), planner=LoadPlanner())

What is written is a step like any other: tensors by DCP's names ("model.fc.weight"), in the
parts that the ranks held, and plain objects. `holdfast ls`, verify and open() read it, and another
number of ranks can load it. DCP's own planners pickle values that are no tensors, and run that
pickle when it is loaded. These planners store such values as typed values, or refuse them by key.
"""

from holdfast.torch.dcp.planners import LoadPlanner, SavePlanner
from holdfast.torch.dcp.reader import Reader
from holdfast.torch.dcp.step_ids import step_of
from holdfast.torch.dcp.writer import Writer

__all__ = ["LoadPlanner", "Reader", "SavePlanner", "Writer", "step_of"]
