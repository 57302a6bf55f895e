"""Sorts the options of a Checkpointer into its groups, so that tests can give them as one dict."""

import dataclasses
from typing import Any

from holdfast.options import GROUPS


def grouped(**flat: Any) -> dict[str, Any]:
    """Puts fields of Writing, Failures, ... into their groups. Other keywords stay as they are."""
    options = dict(flat)
    for keyword, group in GROUPS.items():
        names = {field.name for field in dataclasses.fields(group)}
        inside = {name: options.pop(name) for name in names & options.keys()}
        if inside:
            options[keyword] = group(**inside)
    return options
