"""Fixtures of all tests."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can import command

from small_disks import mount  # noqa: E402

MEMORY = Path("/dev/shm")

# A shell script starts what it puts into the background with SIGINT ignored. Tests of Ctrl-C would
# then wait for ever, here and in the processes that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# torch asks a name server for the name of each process that connects to a store, and waits 5 s if the
# answer is lost. No test needs one.
os.environ["RES_OPTIONS"] = "attempts:0"
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # else torch says each time that it got no answer

# A busy machine is slow, which is no fault of what is tested.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.fixture
def disk_path(tmp_path_factory):
    """A new folder on the disk, for tests that would show nothing in memory."""
    return tmp_path_factory.mktemp("disk")


@pytest.fixture
def tmp_path(tmp_path_factory):
    """A new folder in memory, where fsync is fast, or on the disk if the system has no /dev/shm."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path_factory.mktemp("memory")
        return
    folder = Path(tempfile.mkdtemp(prefix="holdfast-", dir=MEMORY))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def small_disk(tmp_path):
    """The folder of a file system of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = mount(folder, "size=8m")
    if made.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
