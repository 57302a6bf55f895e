"""The names of tensors in a checkpoint: words with dots between them."""

import re


def join(*parts: str) -> str:
    """The parts that are not empty, with dots."""
    return ".".join(part for part in parts if part)


def own_name(name: str, rank: int) -> str:
    """The name of what is a rank's own, where others have one of the same name."""
    return f"{name}@rank{rank}"


def plain_name(name: str) -> str:
    """The name without own_name()'s rank."""
    return re.sub(r"@rank\d+$", "", name)
