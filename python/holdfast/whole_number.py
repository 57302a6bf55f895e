"""Refuses in one sentence what is no whole number, or too small or large for the native module."""

import operator
from typing import Any


def whole_number(name: str, value: Any, least: int = 0, limit: int = 1 << 63) -> int:
    """The value as an int; TypeError or ValueError unless it is one from `least` to below `limit`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}; expected a whole number") from None
    if number < least:
        raise ValueError(f"{name}={number}; expected {least} or more")
    if number >= limit:
        raise ValueError(f"{name}={number}; expected a number below 2**{limit.bit_length() - 1}")
    return number
