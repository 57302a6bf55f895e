"""Changes of TP x PP x DP of jobs whose processes live, with real processes and real kills."""

import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from command import output_of
from elastic_models import ARGS
from elastic_ran import AGAIN, SCRIPT, Job
from long_tests import IS_LONG, LONG
from recovered_jobs import begin_launch

import holdfast
from holdfast.resize.__main__ import text_of_now
from holdfast.resize.control import Control


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A job that never changes, on one worker."""
    job = Job(tmp_path_factory.mktemp("alone") / "run", "dp=1", steps=200, ranks=1, most=1)
    assert job.code == 0, job.said
    return job


@pytest.fixture(scope="module")
def spread(tmp_path_factory, alone):
    """How far losses are from each other if sums are rounded in another order, as with two replicas."""
    job = Job(tmp_path_factory.mktemp("two") / "run", "dp=2", steps=100, ranks=2, most=2)
    assert job.code == 0, job.said
    ones, others = alone.losses(), job.losses()
    return max(abs(float.fromhex(ones[step]) - float.fromhex(one)) for step, one in others.items())


def test_a_job_goes_through_configurations_with_all_bits_and_samples(tmp_path, alone, spread):
    """In its middle, it ends with a save, and another job goes on with it."""
    run, refused = tmp_path / "run", "this model is that of an earlier configuration of the job; expected job.model"
    job = Job(run, "tp=2,pp=2", "dp=2,pp=2;pp=2;dp=3", how=["parts", "saves"])
    assert job.code == 0, job.said
    assert [one["state"] for one in job.answers] == ["made"] * 3, job.said
    assert job.check_bits() == 3
    assert all(one["moved"] == one["bound"] for one in job.answers)
    # Of workers 0 and 1, each had a part of the first stage: the second stage stays on worker 2.
    assert job.answers[1]["workers"] == [0, 2], job.answers[1]
    assert set(job.configurations().values()) == {
        "tp=2,pp=2,dp=1", "tp=1,pp=2,dp=2", "tp=1,pp=2,dp=1", "tp=1,pp=1,dp=3"}
    shutil.rmtree(f"{run}.bits")
    again = Job(run, "dp=3", "dp=2,tp=2;pp=4;dp=1;dp=4", ranks=3)
    assert again.code == 0, again.said
    assert [one["state"] for one in again.answers] == ["made"] * 4, again.said
    assert again.check_bits() == 4 and all(one["moved"] == one["bound"] for one in again.answers)
    assert {"tp=2,pp=1,dp=2", "tp=1,pp=4,dp=1", "tp=1,pp=1,dp=1", "tp=1,pp=1,dp=4"} < {*again.configurations().values()}
    assert 0 < spread < 1e-4
    again.check_steps(alone, 3 * spread)
    assert again.said.count("on workers") == 7
    seen = [change for changes in again.changed().values() for change in changes]
    assert len(seen) > 7 and all(refused in said for _, _, said in seen), seen
    assert any("generators: this place in the configuration is new, so they are seeded anew" in inexact
               for _, inexact, _ in seen), seen
    assert json.loads(output_of("show", run, "--json"))["manifest"]["parallel"] == "tp=1,pp=1,dp=4"


def test_a_job_that_has_changed_is_resumed_and_moved_to_other_workers(tmp_path):
    run = tmp_path / "run"
    process = begin_launch(["-n", "3", "--most", "5", SCRIPT, run, "dp=3", "", "100", "", "saves"],
                           tmp_path / "said")
    while not (shown := resize(run, until=process)).stdout.endswith("; 2 spares\n") and process.poll() is None:
        pass  # rank 0 hears of spares when the first step is made
    assert (shown.returncode, shown.stdout) == (0, "tp=1,pp=1,dp=3 on workers 0 1 2, since step 0; 2 spares\n")
    planned = json.loads(resize(run, "--to", "dp=2", "--plan-only", "--json", until=process).stdout)
    # The first rank sends its buffers to the other one, because only its buffers count.
    assert (planned["state"], planned["moved"], len(planned["workers"])) == ("planned", 136, 2), planned
    now = json.loads(resize(run, "--json").stdout)
    assert planned["needed"] > 0 and (now["to"], now["history"]) == ("tp=1,pp=1,dp=3", [])
    answer = resize(run, "--avoid", "0", "--avoid", "1", "--json", until=process)
    assert process.wait(60) == 0, (tmp_path / "said").read_text()
    assert json.loads(answer.stdout)["workers"] == [2, 3, 4], answer
    told = text_of_now({**now, "history": Control(run).history()}).splitlines()
    assert len(told) == 2 and told[0].endswith("; 2 spares"), told
    assert told[1].startswith("  tp=1,pp=1,dp=3 -> tp=1,pp=1,dp=3 on workers 2 3 4, after step "), told
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
    """First the worker that joins, then rank 0. Each of the three ranks holds all of the state.

    test_elastic_long.py has other workers and other points.
    """
    kills = "3:change met:1,0:change built:1"
    job = Job(tmp_path / "run", "dp=3", "dp=2,tp=2;dp=2,tp=2", kills=kills, ranks=3)
    assert job.code == 0, job.said
    assert job.killed() == ["0:change-built:1", "3:change-met:1"]
    assert AGAIN not in job.said and job.said.count("died during the change") == 2, job.said
    job.check_steps(alone)
    assert job.configurations()[max(job.losses())] == "tp=1,pp=2,dp=1", job.said
    assert job.check_bits() >= 2


def test_a_worker_may_die_when_only_some_of_the_others_have_begun_to_make_groups(tmp_path, alone):
    """Worker 2 has no place in the configuration that was asked for, and has one in the next."""
    job = Job(tmp_path / "run", "dp=3", "dp=2", kills="1:change met:1", ranks=3)
    assert job.code == 0 and len(job.killed()) == 1, job.said
    assert AGAIN not in job.said and "died during the change" in job.said, job.said
    job.check_steps(alone)


@pytest.fixture
def folder_on_disk():
    """A folder in which what is written is counted; there it is not in memory, as other tests' folders are."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize(("first", "plan"), [
    ("dp=4", "dp=2;pp=2,dp=2"), pytest.param("tp=2,pp=2", "pp=2,dp=2;dp=3;tp=2,dp=2;pp=4", marks=LONG)])
def test_every_byte_that_moves_is_planned_and_none_is_on_a_disk(folder_on_disk, first, plan):
    """From four replicas to two, nothing moves, and nothing is copied: each tensor stays in its memory."""
    job = Job(folder_on_disk / "run", first, plan, how=["counts", "no buffers"])
    assert job.code == 0, job.said
    assert {one["state"] for one in job.answers} == {"made"} and job.check_bits() == plan.count(";") + 1, job.said
    counts = job.counts()
    carried = [[one for one in lines if "moved" in one] for lines in counts.values()]
    if first == "dp=4":
        fewer, more = ([one[change] for one in carried if len(one) > change] for change in (0, 1))
        assert [(one["received"], one["copied"], one["moved"], one["bound"]) for one in fewer] == [(0, 0, 0, 0)] * 4
        assert sorted(one["kept"] > 0 for one in fewer) == [False, False, True, True]
        assert job.answers[1]["moved"] == job.answers[1]["bound"] > 0
    for answer in job.answers:
        ranks = [one for lines in carried for one in lines if (one["moved"], one["bound"]) == (
            answer["moved"], answer["bound"])]
        assert sum(one["received"] for one in ranks) == answer["moved"] == answer["bound"], answer
    for lines in counts.values():
        disk = [one for one in lines if "before" in one or "after" in one]
        # A worker that joins has written nothing before. A page or two are those of this test, and of the log.
        written = [after["after"] - before["before"] for before, after in itertools.pairwise(disk)
                   if "before" in before and "after" in after]
        assert max(written, default=0) < 64 << 10, disk


def test_a_resnet_keeps_all_bits_with_a_scaler_and_processes_that_read(tmp_path):
    plan = "dp=5;dp=4;dp=3;dp=1;dp=5" if IS_LONG else "dp=5;dp=4"
    job = Job(tmp_path / "run", "dp=2", plan, how=["vision"], ranks=2, most=5, timeout=300)
    assert job.code == 0, job.said
    assert {one["state"] for one in job.answers} == {"made"}, job.said
    assert job.check_bits() == plan.count(";") + 1
    numbers = iter(holdfast.data.loader(list(range(240)), ARGS.batch, seed=0, last="join"))
    assert job.batches() == {step: sorted(next(numbers).tolist()) for step in job.batches()}


@pytest.mark.parametrize(("how", "why"), [
    (["raises"], "rank 1: ValueError: there is no such layer"),
    pytest.param(["forgets"], "forgotten: a tensor that is no parameter and no buffer", marks=LONG),
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


def test_workers_that_die_early_or_never_come_leave_the_job_as_it_was(tmp_path, alone):
    job = Job(tmp_path / "run", "dp=3", "dp=4;dp=4", how=["dies early", "sleeps"], ranks=3, options=["--hang", 5])
    assert job.code == 0, job.said
    assert AGAIN not in job.said and {*job.configurations().values()} == {"tp=1,pp=1,dp=3"}, job.said
    assert sorted(one["why"].partition(":")[0] for one in job.answers) == [
        "not all workers of tp=1,pp=1,dp=4 were there after 5 s", "worker 3 has ended"], job.answers
    job.check_steps(alone)


@pytest.mark.parametrize("data", ["resumable data", pytest.param("plain data", marks=LONG)])
def test_a_loader_that_cannot_follow_a_change_is_refused_before_anything_moves(tmp_path, data):
    job = Job(tmp_path / "run", "dp=2", "dp=1", steps=30, how=[data], ranks=2, most=2)
    assert job.code == 0, job.said
    assert [one["state"] for one in job.answers] == ["refused"], job.answers
    assert "a loader that does not follow the job" in job.answers[0]["why"], job.answers
    assert not Path(f"{job.run}.bits").exists()
