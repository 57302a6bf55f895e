"""Holdfast keeps a deep-learning training job going.

The package imports without torch; what needs it stands in holdfast.torch.
"""

from holdfast._native import (
    Box,
    Dtype,
    bytes_of,
    intersect,
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

__all__ = [
    "Box",
    "ConflictError",
    "CorruptError",
    "Dtype",
    "Error",
    "NotFoundError",
    "UnavailableError",
    "__version__",
    "bytes_of",
    "intersect",
    "parse_dtype",
]
