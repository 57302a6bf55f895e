"""Kills real processes at random times. The next process must find a whole step, and no step that
was reported as durable may be lost.

HOLDFAST_KILLS is the number of kills (default 10).
"""

import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import holdfast

JOB = Path(__file__).parent / "job.py"
KILLS = int(os.environ.get("HOLDFAST_KILLS", "10"))


class Job:
    """A running job.py, whose output is read line by line."""

    def __init__(self, what, run):
        path = str(Path(holdfast.__file__).parent.parent)
        self.process = subprocess.Popen(
            [sys.executable, "-S", str(JOB), what, str(run)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
        )

    def wait_for(self, word):
        """Waits for a line that begins with the word. Returns the rest of that line."""
        for line in self.process.stdout:
            if line.split()[0] == word:
                return line.split()[1:]
        raise AssertionError(f"no {word!r}: {self.process.stderr.read()}")

    def kill(self):
        """The last lines that the process has printed."""
        self.process.kill()
        out, err = self.process.communicate()
        assert not err, err
        return out.splitlines()


def steps_said(lines):
    # The kill may have cut off the last line. A step counts only if its line is complete.
    return [int(line.split()[1]) for line in lines if line.startswith("durable ") and line[8:]]


def kill_often(run, kills, dice):
    """Kills a job again and again. Returns how many steps were reported as durable in all."""
    durable = said = 0
    for number in range(kills):
        job = Job("train", run)
        (found,) = map(int, job.wait_for("restored"))
        assert found >= durable, f"kill {number}: found {found}, {durable} was durable"
        if dice.random() < 0.9:  # otherwise it may also be killed while it takes over the run
            job.wait_for("ready")
        time.sleep(dice.random() ** 2 * 0.3)
        waited = []
        if number == kills - 1 and said == 0:  # on a slow disk, each kill may have come too early
            waited = [int(job.wait_for("durable")[0])]
        steps = waited + steps_said(job.kill())
        durable = max([found, *steps])
        said += len(steps)
    job = Job("train", run)
    (found,) = map(int, job.wait_for("restored"))
    assert found >= durable
    job.kill()
    return said


@pytest.mark.parametrize("where", ["tmp_path", "disk_path"])
def test_a_job_killed_at_any_time_goes_on_from_its_newest_step(where, request):
    seed = random.randrange(2**32)
    print("seed", seed)
    run = request.getfixturevalue(where) / "run"
    assert kill_often(run, (KILLS + 1) // 2, random.Random(seed)) > 0
    assert len(list(run.glob("step-*"))) <= 5  # two that are kept, two in progress, one more


def files_of(run):
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_restore_that_is_killed_changes_nothing(tmp_path):
    job = Job("train", tmp_path / "run")
    job.wait_for("durable")
    job.kill()
    before = files_of(tmp_path)
    for _ in range(max(3, KILLS // 10)):
        job = Job("restore", tmp_path / "run")
        job.wait_for("ready")
        time.sleep(random.random() * 0.02)
        job.kill()
    assert files_of(tmp_path) == before
    job = Job("restore", tmp_path / "run")
    job.wait_for("restored")
    job.kill()


def test_a_second_job_is_refused_with_the_name_of_the_first(tmp_path):
    job = Job("hold", tmp_path)
    (pid,) = job.wait_for("ready")
    with pytest.raises(holdfast.ConflictError) as refused:
        holdfast.Saver(tmp_path)
    assert socket.gethostname() in str(refused.value) and pid in str(refused.value)
    assert "\n" not in str(refused.value)
    job.process.stdin.close()
    assert job.process.wait() == 0
    holdfast.Saver(tmp_path).close()


def test_a_job_that_died_is_taken_over(tmp_path):
    job = Job("hold", tmp_path)
    job.wait_for("ready")
    job.kill()
    holdfast.Saver(tmp_path).close()


def test_a_second_saver_of_the_same_process_is_refused(tmp_path):
    with holdfast.Saver(tmp_path):
        with pytest.raises(holdfast.ConflictError):
            holdfast.Saver(tmp_path)
