"""The names of tensors in a checkpoint: words with dots between them."""

import re
from collections.abc import Sequence


def join(*parts: str) -> str:
    """Joins the parts that are not empty with dots."""
    return ".".join(part for part in parts if part)


def own_name(name: str, rank: int) -> str:
    """The name in a checkpoint of what one rank holds as its own."""
    return f"{name}@rank{rank}"


def plain_name(name: str) -> str:
    """The name without the rank that own_name() added."""
    return re.sub(r"@rank\d+$", "", name)


def name_a_few(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
