"""Elastic jobs on several hosts, of which some are lost: launchers that share this machine."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from long_tests import LONG
from recovered_jobs import begin_launch
from elastic_ran import SCRIPT, Left
from test_elastic import alone, resize  # noqa: F401  (alone is a fixture)
from test_launch_hosts import free_port


class Hosts:
    """The launchers of one job, by host."""

    def __init__(self, run, ranks, *job, wait=1, most=None):
        """`ranks` are those of host 0, 1, ... at first, `job` the arguments of elastic_job.py behind RUN."""
        self.run, self._job, self.launchers = run, [str(one) for one in job], {}
        self._options = ["--hosts", str(len(ranks)), "--at", f"127.0.0.1:{free_port()}", "--wait", str(wait),
                         *(["--most", str(most)] if most else [])]
        for host, number in enumerate(ranks):
            self.add(host, number)

    def add(self, host, ranks):
        self.launchers[host] = begin_launch(
            ["-n", str(ranks), *self._options, "--host", str(host), SCRIPT, self.run, *self._job],
            f"{self.run}.said.{host}")

    def lose(self, host):
        """The host is gone, with all its processes."""
        launcher = self.launchers.pop(host)
        with open(f"/proc/{launcher.pid}/task/{launcher.pid}/children") as file:
            workers = [int(one) for one in file.read().split()]
        for pid in [launcher.pid, *workers]:
            os.kill(pid, signal.SIGKILL)
        launcher.wait()

    def said(self):
        return "\n".join(path.read_text() for path in sorted(self.run.parent.glob(f"{self.run.name}.said.*")))

    def until(self, is_so, timeout=60):
        until = time.monotonic() + timeout
        while not is_so():
            assert time.monotonic() < until and self.launchers[0].poll() is None, self.said()
            time.sleep(0.05)

    def until_step_as(self, configuration, steps=3):
        """Waits until so many steps are made in that configuration."""
        def has_come():
            lines = [json.loads(line) for path in self.run.parent.glob(f"{self.run.name}.steps.*")
                     for line in path.read_text().splitlines() if line.endswith("]")]
            newest = dict(sorted((step, parallel) for step, parallel, *_ in lines))
            return list(newest.values())[-steps:] == [configuration] * steps

        self.until(has_come)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in self.launchers.values():
            one.send_signal(signal.SIGTERM)
        for one in self.launchers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(20)
            one.kill()


def test_a_job_goes_on_without_a_host_and_grows_again_when_another_one_comes(tmp_path, alone):  # noqa: F811
    with Hosts(tmp_path / "run", [2, 1], "dp=3", "", 10000, "", "saves", "loses its host") as job:
        job.until_step_as("tp=1,pp=1,dp=3")
        job.launchers.pop(1).wait(60)
        job.until_step_as("tp=1,pp=2,dp=1")
        assert "holdfast: all ranks start again" not in job.said(), job.said()
        shown = json.loads(resize(job.run, "--json").stdout)
        assert (shown["to"], shown["workers"], shown["step"]) == ("tp=1,pp=2,dp=1", [0, 1], 6)
        refused = resize(job.run, "--to", "dp=4")
        assert refused.returncode == 1 and "there are at most 2; expected a smaller configuration, or more hosts" \
            in refused.stderr, refused
        job.add("spare", 1)
        job.until_step_as("tp=1,pp=1,dp=3")
        left = json.loads(resize(job.run, "--to", "dp=2", "--avoid", "host1", "--json").stdout)
        assert left["workers"] == [0, 1], left
        taken_back(job.run)
        job.launchers[0].send_signal(signal.SIGTERM)
        assert job.launchers[0].wait(60) == 143, job.said()
        said = job.said()
    made = Left(job.run)
    assert "holdfast: all ranks start again" not in said and "host 1: not there after 1 s; the job goes on as tp=1,pp=2,dp=1" in said
    assert made.check_bits() == 3
    steps = range(max(made.losses()) + 1)
    expected, losses, others = alone.batches(), made.losses(), alone.losses()
    assert sorted(losses) == list(steps) and made.batches().keys() == losses.keys()
    common = [step for step in steps if step in expected]
    assert {step: made.batches()[step] for step in common} == {step: expected[step] for step in common}
    assert all(abs(float.fromhex(losses[step]) - float.fromhex(others[step])) < 1e-4 for step in common)
    (lost,) = made.events("recovered")
    assert (lost["outcome"], lost["rung"], lost["steps_lost"], lost["exact"]) == ("fewer ranks", "replica", 0, False)
    assert [(one["old"], one["to"], one["workers"]) for one in made.events("resized")] == [
        ("tp=1,pp=1,dp=3", "tp=1,pp=2,dp=1", "0 1"), ("tp=1,pp=2,dp=1", "tp=1,pp=1,dp=3", "0 1 2"),
        ("tp=1,pp=1,dp=3", "tp=1,pp=1,dp=2", "0 1")]


def taken_back(run):
    """Asks for a worker that takes some time to start, and takes the request back with Ctrl-C."""
    asks = subprocess.Popen([sys.executable, "-m", "holdfast.resize", str(run), "--to", "dp=3"],
                            stderr=subprocess.PIPE, text=True)
    known = set((run / "control").glob("answer-*"))
    while not set((run / "control").glob("answer-*")) - known:
        assert asks.poll() is None
    asks.send_signal(signal.SIGINT)
    _, said = asks.communicate(timeout=30)
    assert (asks.returncode, said) == (130, "holdfast: the request was taken back\n")
    assert json.loads(resize(run, "--json").stdout)["to"] == "tp=1,pp=1,dp=2"


@LONG
def test_a_part_that_only_a_lost_host_had_is_named_and_the_others_begin_from_the_checkpoint(tmp_path):
    with Hosts(tmp_path / "run", [1, 1], "pp=2", "", 60, "") as job:
        job.until_step_as("tp=1,pp=2,dp=1")
        job.lose(1)
        assert job.launchers[0].wait(90) == 0, job.said()
        said = job.said()
    assert "all ranks start again from the newest checkpoint: rank 0: NotFoundError: model.blocks.2.norm1.weight: " \
        "no worker that is left has it" in said, said
    assert Left(job.run).configurations()[59] == "tp=1,pp=1,dp=1"
