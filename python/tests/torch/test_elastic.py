"""Changes of TP x PP x DP of jobs whose processes live, with real processes and real kills."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from elastic_ran import AGAIN, SCRIPT, Job
from long_tests import LONG
from recovered_jobs import begin_launch



@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A job that never changes, on one worker."""
    job = Job(tmp_path_factory.mktemp("alone") / "run", "dp=1", steps=100, ranks=1, most=1)
    assert job.code == 0, job.said
    return job


def test_a_job_goes_through_configurations_with_all_bits_and_samples(tmp_path, alone):
    job = Job(tmp_path / "run", "tp=2,pp=2", "dp=2,pp=2;pp=2;dp=3;dp=2,tp=2;pp=4", how=["parts"])
    assert job.code == 0, job.said
    assert [one["state"] for one in job.answers] == ["made"] * 5, job.said
    assert job.check_bits() == 5
    assert all(one["moved"] == one["bound"] for one in job.answers)
    # Of workers 0 and 1, each had a part of the first stage: the second stage stays on worker 2.
    assert job.answers[1]["workers"] == [0, 2], job.answers[1]
    assert set(job.configurations().values()) == {
        "tp=2,pp=2,dp=1", "tp=1,pp=2,dp=2", "tp=1,pp=2,dp=1", "tp=1,pp=1,dp=3", "tp=2,pp=1,dp=2",
        "tp=1,pp=4,dp=1"}
    job.check_steps(alone)
    assert job.said.count("on workers") == 5


def test_a_job_that_has_changed_is_resumed_and_moved_to_other_workers(tmp_path):
    run = tmp_path / "run"
    process = begin_launch(["-n", "3", "--most", "5", SCRIPT, run, "dp=3", "", "100", "", "saves"],
                           tmp_path / "said")
    shown = resize(run, until=process)
    assert (shown.returncode, shown.stdout) == (0, "tp=1,pp=1,dp=3 on workers 0 1 2, since step 0\n")
    planned = json.loads(resize(run, "--to", "dp=2", "--plan-only", "--json", until=process).stdout)
    # The first rank sends its buffers to the other one, because only its buffers count.
    assert (planned["state"], planned["moved"], len(planned["workers"])) == ("planned", 136, 2), planned
    assert planned["needed"] > 0 and json.loads(resize(run, "--json").stdout)["to"] == "tp=1,pp=1,dp=3"
    answer = resize(run, "--avoid", "0", "--avoid", "1", "--json", until=process)
    assert process.wait(60) == 0, (tmp_path / "said").read_text()
    assert json.loads(answer.stdout)["workers"] == [2, 3, 4], answer
    shown = resize(run)
    assert shown.returncode == 4 and "no job has it" in shown.stderr
    job = Job(run, "dp=3", steps=103, ranks=3, most=3)
    whole = Job(tmp_path / "whole", "dp=3", steps=103, ranks=3, most=3)
    assert job.losses() == whole.losses() and len(whole.losses()) == 103
    assert job.check_bits() == 2


def test_wrong_calls_get_a_sentence(tmp_path):
    for options, code, why in [
        (["--to", "tp=0"], 2, "--to: configuration 'tp=0'; expected degrees"),
        (["--to", "xp=2"], 2, "expected degrees"), (["--timeout", "0"], 2, "expected more than 0"),
        (["--to", "tp=2"], 4, "no job has it"), (["--to", "tp=2", "--json"], 4, "no job has it"),
    ]:
        ran = resize(tmp_path / "run", *options)
        assert ran.returncode == code and why in ran.stderr, ran
        assert ran.stderr.count("\n") == 1
        assert "--json" not in options or json.loads(ran.stdout)["code"] == code


def resize(run, *options, until=None):
    """Runs `holdfast resize`, again as long as the job has not begun."""
    while True:
        ran = subprocess.run([sys.executable, "-m", "holdfast.resize", str(run), *options],
                             capture_output=True, text=True, timeout=120, check=False)
        if ran.returncode != 4 or until is None or until.poll() is not None:
            return ran


def test_a_worker_that_dies_during_a_change_costs_no_step(tmp_path, alone):
    """test_elastic_long.py has other workers and other points. Each of the three holds all of the state."""
    job = Job(tmp_path / "run", "dp=3", "dp=2,tp=2", kills="0:change built:1", ranks=3)
    assert job.code == 0, job.said
    assert job.killed() == ["0:change-built:1"]
    assert AGAIN not in job.said and "died during the change" in job.said, job.said
    job.check_steps(alone)
    assert job.configurations()[max(job.losses())] == "tp=1,pp=2,dp=1", job.said
    assert job.check_bits() >= 1


def test_a_worker_may_die_when_only_some_of_the_others_have_begun_to_make_groups(tmp_path, alone):
    """Worker 2 has no place in the configuration that was asked for, and has one in the next."""
    job = Job(tmp_path / "run", "dp=3", "dp=2", kills="1:change met:1", ranks=3)
    assert job.code == 0 and len(job.killed()) == 1, job.said
    assert AGAIN not in job.said and "died during the change" in job.said, job.said
    job.check_steps(alone)


@pytest.mark.parametrize(("how", "why"), [
    (["raises"], "rank 1: ValueError: there is no such layer"),
    pytest.param(["forgets"], "forgotten: a tensor that is no parameter and no buffer", marks=LONG),
    pytest.param(["other model"], "float32", marks=LONG),
])
def test_a_job_whose_change_fails_goes_on_as_it_was(tmp_path, how, why):
    job = Job(tmp_path / "run", "tp=2,pp=2", "dp=2,pp=2", how=how)
    assert job.code == 0, job.said
    assert why in job.said and AGAIN not in job.said, job.said
    assert set(job.configurations().values()) == {"tp=2,pp=2,dp=1"}
    assert [one["state"] for one in job.answers] == ["refused"] and why in job.answers[0]["why"]
    assert job.check_bits() == 1


def test_a_stop_signal_that_comes_during_a_change_waits_for_its_end(tmp_path, alone):
    job = Job(tmp_path / "run", "tp=2,pp=2", "dp=2,pp=2", how=["is stopped"])
    assert job.code == 143 and "which is saved: signal 15" in job.said, job.said
    assert job.configurations()[max(job.losses())] == "tp=1,pp=2,dp=2" and job.check_bits() == 1
    job = Job(tmp_path / "run", "dp=2", steps=max(job.losses()) + 5, ranks=2)
    assert job.code == 0, job.said
    assert job.batches() == {step: alone.batches()[step] for step in job.batches()}


@pytest.mark.parametrize(("first", "to", "how", "why"), [
    ("dp=2", "dp=3", [], "3 workers are wanted, and there are at most 2"),
    pytest.param("dp=2", "dp=1", ["plain data"], "a loader that does not follow the job", marks=LONG),
])
def test_a_change_that_cannot_be_is_refused_before_anything_moves(tmp_path, first, to, how, why):
    job = Job(tmp_path / "run", first, to, steps=30, how=how, ranks=2, most=2)
    assert job.code == 0, job.said
    assert [one["state"] for one in job.answers] == ["refused"] and why in job.answers[0]["why"], job.answers
    assert not Path(f"{job.run}.bits").exists()
