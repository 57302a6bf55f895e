"""A launch ends the processes that an earlier launch of the same program has left, and no others."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_launch import LONG, Launch, until

from holdfast.launch import orphans
from holdfast.launch.options import Options
from holdfast.launch.orphans import Register

SLEEPS = [sys.executable, "-c", "import time; time.sleep(1000)"]


@pytest.fixture
def register(tmp_path, monkeypatch):
    """The register of a launch; those of others are in the same folder."""
    monkeypatch.setattr(orphans.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(orphans, "_TO_SAVE", 0.2)
    return Register(Options(2, ["train.py", "--lr", "1"]))


@pytest.fixture
def process():
    """A process that sleeps."""
    with subprocess.Popen(SLEEPS, start_new_session=True) as made:
        yield made
        made.kill()


def leave(register, process, *, launcher=0, later=0):
    """A launcher with that start time has left a register; the process began so much earlier."""
    register.note([process.pid])
    told = json.loads(register._own.read_text())
    told["processes"][0][1] += launcher
    told["processes"][1][1] += later
    register._own.write_text(json.dumps(told))


def test_a_process_of_a_launcher_that_is_gone_is_named_and_ended(register, process, capsys):
    leave(register, process, launcher=-1)
    register.end_orphans()
    assert process.wait(10) == -9
    said = capsys.readouterr().err
    assert f"whose launcher was killed, still live (pid {process.pid})" in said
    assert f"holdfast: ended pid {process.pid}\n" in said and not list(register._folder.iterdir())


@pytest.mark.parametrize("launcher, later", [(0, 0), (-1, 1)],
                         ids=["the launcher lives", "another process has its id"])
def test_no_other_process_is_ended(register, process, capsys, launcher, later):
    leave(register, process, launcher=launcher, later=later)
    register.end_orphans()
    assert process.poll() is None and capsys.readouterr().err == ""


def test_a_launch_of_another_program_leaves_orphans_alone(register, process):
    leave(register, process, launcher=-1)
    Register(Options(2, ["train.py", "--lr", "2"])).end_orphans()
    assert process.poll() is None and register._own.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"processes": 3}', '{"processes": [["a", 1]]}',
                                  '{"boot": 0, "processes": [[1, 1], [1, 1]]}'])
def test_what_is_no_register_is_ignored(register, text):
    register._own.write_text(text)
    register.end_orphans()


def test_a_folder_that_others_can_write_to_is_not_used(register):
    os.chmod(register._folder, 0o777)
    assert Register(Options(2, ["train.py"]))._folder is None


@LONG
def test_a_second_launch_ends_the_ranks_that_a_killed_launcher_has_left_stuck(tmp_path):
    variables = {"TMPDIR": str(tmp_path)}
    with Launch(tmp_path / "run", 8, ["1:4:sleep"], variables=variables, prefix=[]) as job:
        until(lambda: Path(f"{job.run}.did-sleep-1-4").exists(), 60, job)
        stuck = job.pids()[-2:]
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.wait()
        again = Launch(tmp_path / "run", 8, ["1:4:sleep"], variables=variables, prefix=[])
        code, said = again.end()
        assert code == 0, said
        assert "processes of an earlier launch of this program, whose launcher was killed" in said
        assert "holdfast: ended pid " in said and not any(map(_is_there, stuck)), said


def _is_there(pid):
    return Path(f"/proc/{pid}/stat").exists() and \
        Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] not in "ZX"
