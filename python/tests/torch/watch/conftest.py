"""What the tests of holdfast.Watch share."""

import logging
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can import watched_net

from watched_net import Lines  # noqa: E402


@pytest.fixture
def warned():
    lines = Lines()
    yield lines.lines
    logging.getLogger("holdfast").removeHandler(lines)
