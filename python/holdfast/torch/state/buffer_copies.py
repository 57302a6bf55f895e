"""What several ranks hold of one buffer: equal values, rank 0's, or each rank its own."""

import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _NormBase

from holdfast.torch.state.module_names import Entry
from holdfast.torch.values.boxes import Copies


def copies_of_buffer(entry: Entry, *, are_averaged: bool = False) -> Copies:
    """What ranks hold of a plain buffer; boxes.Part says what the words mean.

    If DDP broadcasts buffers, those of rank 0 count. If DDP does not, and with FSDP, which never
    does, the running statistics of BatchNorm are each rank's own. So they are if an average of
    them is kept (`are_averaged`): it may read them before the next forward pass, in which DDP
    broadcasts.
    """
    ddp = entry.ddp
    if ddp is not None:
        if dist.get_world_size(ddp.process_group) == 1:
            return "equal"
        ignored = entry.ddp_name in ddp.parameters_to_ignore
        is_read = are_averaged and _is_running(entry.module)
        return "first" if ddp.broadcast_buffers and not (ignored or is_read) else "own"
    several = dist.is_initialized() and dist.get_world_size() > 1
    return "own" if several and _is_running(entry.module) else "equal"


def running_statistics(model: nn.Module) -> list[str]:
    """Names of buffers that each rank computes from the samples that it sees."""
    return [f"{prefix}.{name}" if prefix else name for prefix, module in model.named_modules()
            if _is_running(module) for name, _ in module.named_buffers(recurse=False)]


def _is_running(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) and not isinstance(module, SyncBatchNorm)
