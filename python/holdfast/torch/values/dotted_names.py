"""The names of tensors in a checkpoint: words with dots between them."""

import re


def join(*parts: str) -> str:
    """Joins the parts that are not empty with dots."""
    return ".".join(part for part in parts if part)


def own_name(name: str, rank: int) -> str:
    """The name in a checkpoint of what one rank holds as its own."""
    return f"{name}@rank{rank}"


def plain_name(name: str) -> str:
    """The name without the rank that own_name() added."""
    return re.sub(r"@rank\d+$", "", name)
