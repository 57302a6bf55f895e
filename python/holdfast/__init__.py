"""Holdfast keeps a deep-learning training job going.

The package imports without torch; what needs it stands in holdfast.torch.
"""

from holdfast._native import (
    Box,
    Dtype,
    Figures,
    Placement,
    Plan,
    bytes_of,
    intersect,
    model_names,
    parse_dtype,
)
from holdfast._native import version as __version__
from holdfast.errors import (
    ConflictError,
    CorruptError,
    Error,
    NotFoundError,
    UnavailableError,
)
from holdfast.planning import plan

__all__ = [
    "Box",
    "ConflictError",
    "CorruptError",
    "Dtype",
    "Error",
    "Figures",
    "NotFoundError",
    "Placement",
    "Plan",
    "UnavailableError",
    "__version__",
    "bytes_of",
    "intersect",
    "model_names",
    "parse_dtype",
    "plan",
]
