"""Which processes may take over a run from an owner that lives on another host."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

CLONE_NEWUTS = 0x04000000

# Takes ownership of a run, prints so, and keeps it until its input is closed.
OWN = """
import sys
import holdfast
with holdfast.Saver(sys.argv[1]) as saver:
    print("owns", flush=True)
    sys.stdin.read()
"""


def own(run, variables):
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith(("SLURM_", "TORCHELASTIC_", "MASTER_"))}
    return subprocess.Popen([sys.executable, "-c", OWN, str(run)], env=clean | variables, text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@contextlib.contextmanager
def owned_elsewhere(run, variables):
    """A run that a living process owns, on a host with another name."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.open("/proc/thread-self/ns/uts", os.O_RDONLY)
    try:
        if libc.unshare(CLONE_NEWUTS) != 0:
            pytest.skip("only root may give a process a host of its own")
        try:
            socket.sethostname("elsewhere")
            process = own(run, variables)
        finally:
            assert libc.setns(here, CLONE_NEWUTS) == 0
    finally:
        os.close(here)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "owns\n"
        yield
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()


def outcome(run, variables):
    """Tries to take ownership of the run in a new process. Returns what that process printed."""
    out, error = own(run, variables).communicate(timeout=60)
    return out + error


@pytest.mark.parametrize("variables, count", [
    ({"SLURM_JOB_ID": "77"}, "SLURM_RESTART_COUNT"),
    ({"SLURM_JOB_ID": "78", "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3"},
     "SLURM_RESTART_COUNT"),
    ({"TORCHELASTIC_RUN_ID": "gpt", "MASTER_ADDR": "node1"}, "TORCHELASTIC_RESTART_COUNT")])
def test_a_requeued_job_goes_on_at_once_on_another_host(tmp_path, variables, count):
    run = tmp_path / "run"
    with owned_elsewhere(run, variables):
        start = time.monotonic()
        another = {"SLURM_JOB_ID": "99", "SLURM_RESTART_COUNT": "1"}
        for other in (variables, {}, another):
            said = outcome(run, other)
            assert "in use by process" in said and "elsewhere" in said
        assert outcome(run, variables | {count: "1"}) == "owns\n"
        assert time.monotonic() - start < 60  # it did not wait until the lease ran out


def test_torchrun_names_no_job_by_default(tmp_path):
    run = tmp_path / "run"
    unnamed = {"TORCHELASTIC_RUN_ID": "none"}
    with owned_elsewhere(run, unnamed):
        said = outcome(run, unnamed | {"TORCHELASTIC_RESTART_COUNT": "1"})
        assert "in use by process" in said
