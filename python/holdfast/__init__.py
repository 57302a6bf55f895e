"""Holdfast keeps a deep-learning training job going.

The package can be imported without torch. With torch installed, it takes torch tensors, too.
"""

import importlib
from typing import TYPE_CHECKING, Any

from holdfast import campaign, data, statistics
from holdfast._native import (
    Box,
    Dtype,
    Durable,
    Figures,
    Keep,
    Placement,
    Plan,
    Restored,
    SaveHandle,
    TensorInfo,
    TensorName,
    Tier,
    bytes_of,
    intersect,
    model_names,
    parse_dtype,
)
from holdfast._native import version as __version__
from holdfast.checkpoint import Saver, restore
from holdfast.errors import (
    ConflictError,
    CorruptError,
    Error,
    Interrupted,
    NotFoundError,
    UnavailableError,
)
from holdfast.files import Contents, open
from holdfast.options import Failures, Layout, Recover, Resuming, Schedule, Watch, Writing
from holdfast.planning import plan
from holdfast.verbs import (
    VerbReport,
    convert,
    diff,
    export,
    gc,
    index,
    interval,
    ls,
    pin,
    repair,
    reshard,
    seal,
    show,
    simulate,
    unpin,
    verify,
)

if TYPE_CHECKING:
    from holdfast.torch.checkpointer import Checkpointer
    from holdfast.torch.elastic.elastic import Elastic
    from holdfast.torch.files.single_file import load, save
    from holdfast.torch.inject import flip_plan, inject
    from holdfast.torch.model_layout import layout_of
    from holdfast.torch.state.weights_file import load_into

# These names need torch. Each is imported when it is first used.
_WITH_TORCH = {
    "Checkpointer": "holdfast.torch.checkpointer",
    "Elastic": "holdfast.torch.elastic.elastic",
    "flip_plan": "holdfast.torch.inject",
    "inject": "holdfast.torch.inject",
    "layout_of": "holdfast.torch.model_layout",
    "load": "holdfast.torch.files.single_file",
    "load_into": "holdfast.torch.state.weights_file",
    "save": "holdfast.torch.files.single_file",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(importlib.import_module(_WITH_TORCH[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_WITH_TORCH})


__all__ = [
    "Box",
    "Checkpointer",
    "ConflictError",
    "Contents",
    "CorruptError",
    "Dtype",
    "Durable",
    "Elastic",
    "Error",
    "Failures",
    "Figures",
    "Interrupted",
    "Keep",
    "Layout",
    "NotFoundError",
    "Placement",
    "Plan",
    "Recover",
    "Restored",
    "Resuming",
    "SaveHandle",
    "Saver",
    "Schedule",
    "TensorInfo",
    "TensorName",
    "Tier",
    "UnavailableError",
    "VerbReport",
    "Watch",
    "Writing",
    "__version__",
    "bytes_of",
    "campaign",
    "convert",
    "data",
    "diff",
    "export",
    "flip_plan",
    "gc",
    "index",
    "inject",
    "intersect",
    "interval",
    "layout_of",
    "load",
    "load_into",
    "ls",
    "model_names",
    "open",
    "parse_dtype",
    "pin",
    "plan",
    "repair",
    "reshard",
    "restore",
    "save",
    "seal",
    "show",
    "simulate",
    "statistics",
    "unpin",
    "verify",
]
