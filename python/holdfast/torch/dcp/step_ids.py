"""What Writer and Reader agree on: the step that a checkpoint_id means, and the format."""

import re
from os import fspath
from typing import Any

from holdfast import Box

FORMAT = 1  # of the objects of a step: {"dcp": FORMAT, "values": ..., "paths": ...}

_NUMBER = re.compile(r"(\d+)/?$", re.ASCII)


def step_of(checkpoint_id: Any) -> int:
    """The step that a checkpoint_id means: its number, or the one that it ends with."""
    found = _NUMBER.search(_text(checkpoint_id))
    if found is None:
        raise ValueError(f"checkpoint_id: {checkpoint_id!r}, want the number of the step, or "
                         "text that ends with it")
    return int(found[1])


def _text(checkpoint_id: Any) -> str:
    return str(checkpoint_id) if isinstance(checkpoint_id, int) else fspath(checkpoint_id)


def ends_with_number(checkpoint_id: Any) -> bool:
    """True for a checkpoint_id that step_of() understands."""
    return _NUMBER.search(_text(checkpoint_id)) is not None


def box_of(offsets: Any, lengths: Any) -> Box:
    return Box([(lo, lo + size) for lo, size in zip(offsets, lengths, strict=True)])
