"""Starts the process from which the tests of holdfast.torch fork ranks (ranks.py)."""

import os
import sys
from pathlib import Path

_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE))  # so that tests can import ranks

import pytest  # noqa: E402
import ranks  # noqa: E402

os.environ["HOLDFAST_LOG"] = "warning"  # else each Checkpointer of a test would print two lines


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs of recovered.py in which nobody dies."""
    from recovered_jobs import Whole

    return Whole(tmp_path_factory)


def pytest_collection_finish(session):
    if any(_HERE in item.path.parents for item in session.items):
        if not session.config.option.collectonly:
            ranks.open_nursery()


def pytest_unconfigure():
    ranks.close_nursery()
