"""Under `holdfast launch`, what a program asks to save is saved although a rank dies meanwhile, and so is
the end of a training if a rank dies after the last update."""

import re

import pytest
from long_tests import LONG
from recovered_jobs import Ran

from holdfast.launch.losses import Loss, Losses

STEPS = 8  # recovered.py saves after steps 4 and 9, so that only close() saves the last one


def newest(run):
    return max(int(one.name.removeprefix("step-")) for one in run.glob("step-*"))


@pytest.mark.parametrize("kills, how", [
    (["1:7:after step"], []),
    pytest.param(["0:7:after step", "2:7:ending"], [], marks=LONG),
    pytest.param(["1:7:after update"], ["hears late"], marks=LONG),
], ids=["between the last step and close", "in close", "before the last step"])
def test_close_saves_the_last_step(tmp_path, whole, kills, how):
    run = tmp_path / "run"
    Ran("ddp", run, STEPS, kills, how).check(whole("ddp", STEPS))
    assert newest(run) == STEPS - 1


def test_a_training_goes_on_exactly_from_an_end_that_a_replacement_has_saved(tmp_path, whole):
    how, run = ["critic", "average", "draws", "tracks"], tmp_path / "run"
    assert Ran("ddp", run, STEPS, ["0:7:after step"], how).code == 0
    assert newest(run) == STEPS - 1
    Ran("ddp", run, STEPS + 4, how=how).check_end(whole("ddp", STEPS + 4, how))


@pytest.mark.parametrize("kill, how", [pytest.param("1:9:step", [], marks=LONG), ("1:9:after step", ["unsettled"])])
def test_a_save_of_the_last_step_that_was_dropped_is_made_again(tmp_path, whole, kill, how):
    run = tmp_path / "run"
    ran = Ran("ddp", run, 10, [kill], how)
    ran.check(whole("ddp", 10))
    assert newest(run) == 9
    assert "to come to close()" not in ran.said, ran.said


def test_all_ranks_start_again_at_the_end_if_one_dies_when_all_is_durable(tmp_path, whole):
    ran = Ran("ddp", tmp_path / "run", STEPS, ["1:7:ended"])
    assert ran.code == 0 and ran.killed, ran.said
    assert re.search("all ranks start again from the newest checkpoint: .*Checkpointer was", ran.said)
    assert "step 8 goes on" in ran.said and "checkpoint, exact, 0 steps lost" in ran.said, ran.said
    # Before its next forward pass, DDP gives the buffers of rank 0 to the others.
    assert ran.end[0] == whole("ddp", STEPS).end[0]


@LONG
def test_a_rank_may_die_while_others_are_in_save(tmp_path, whole):
    run, kills = tmp_path / "run", ["1:5:before save", "0:8:before save", "2:11:after durable"]
    Ran("ddp", run, 12, kills, ["saves", "waits for saves"]).check(whole("ddp", 12))
    assert {f"step-{step:08d}" for step in (2, 5, 8, 11)} <= {one.name for one in run.iterdir()}


def test_all_ranks_start_again_if_one_dies_while_others_wait_for_a_save(tmp_path, whole):
    how = ["saves", "waits for saves", "unsettled"]
    ran = Ran("ddp", tmp_path / "run", 9, ["1:8:after save"], how)
    assert ran.code == 0 and ran.killed, ran.said
    assert "a rank died while Save.durable() waited for a save" in ran.said, ran.said
    assert [one[8] for one in ran.losses] == [one[8] for one in whole("ddp", 12).losses]
    assert newest(tmp_path / "run") == 8


def test_an_unavailable_error_after_a_death_is_not_counted():
    losses = Losses()
    assert losses.why_no_more(Loss(1, 6, -9), True) is None
    unavailable = "UnavailableError: rank 1 did not answer"
    for rank in (0, 2, 3):
        assert losses.why_no_more(Loss(rank, 6, 1, unavailable), True) is None
    losses = Losses()
    assert losses.why_no_more(Loss(0, 6, 1, unavailable), True) is None
    assert "was lost 2 times" in losses.why_no_more(Loss(0, 6, 1, unavailable), True)
