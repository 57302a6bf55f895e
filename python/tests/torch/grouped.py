"""Options of a Checkpointer, given flat as tests vary them, in the groups that it takes."""

import dataclasses
from typing import Any

from holdfast.options import GROUPS


def grouped(**flat: Any) -> dict[str, Any]:
    """Puts fields of Writing, Failures, ... into their groups; other keywords stay as they are."""
    options = dict(flat)
    for keyword, group in GROUPS.items():
        names = {field.name for field in dataclasses.fields(group)}
        inside = {name: options.pop(name) for name in names & options.keys()}
        if inside:
            options[keyword] = group(**inside)
    return options
