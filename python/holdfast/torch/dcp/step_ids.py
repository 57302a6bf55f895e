"""What Writer and Reader agree on: the step that a checkpoint_id means, and the format."""

import re
from os import fspath
from typing import Any

from holdfast import Box

# The version of what a step keeps as objects: {"dcp": FORMAT, "values": ..., "paths": ...}
FORMAT = 1

_NUMBER = re.compile(r"(\d+)/?$", re.ASCII)


def step_of(checkpoint_id: Any) -> int:
    """The step that a checkpoint_id names: the number itself, or the one that it ends with."""
    found = _NUMBER.search(_text(checkpoint_id))
    if found is None:
        raise ValueError(f"checkpoint_id: {checkpoint_id!r}; expected the number of the step, or "
                         "text that ends with it")
    return int(found[1])


def _text(checkpoint_id: Any) -> str:
    return str(checkpoint_id) if isinstance(checkpoint_id, int) else fspath(checkpoint_id)


def ends_with_number(checkpoint_id: Any) -> bool:
    """True for a checkpoint_id that step_of() understands."""
    return _NUMBER.search(_text(checkpoint_id)) is not None


def box_of(offsets: Any, lengths: Any) -> Box:
    return Box([(lo, lo + size) for lo, size in zip(offsets, lengths, strict=True)])
