"""Which tests run only with HOLDFAST_LONG=1, as in make test-all."""

import os
from collections.abc import Iterable
from typing import Any

import pytest

IS_LONG = os.environ.get("HOLDFAST_LONG", "") not in ("", "0")
LONG = pytest.mark.skipif(not IS_LONG, reason="needs HOLDFAST_LONG=1")


def first_of(cases: Iterable[Any], quick: int) -> list[Any]:
    """Cases of which only so many run in make test. A tuple has the values of several parameters."""
    return [pytest.param(*one if isinstance(one, tuple) else (one,), marks=[] if place < quick else LONG)
            for place, one in enumerate(cases)]
