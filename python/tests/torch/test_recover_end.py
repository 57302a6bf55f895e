"""The end of a training is saved under `holdfast launch`, although a rank dies after its last update."""

import re

import pytest
from recovered_jobs import Ran, Whole

STEPS = 8  # recovered.py saves after steps 4 and 9, so that only close() saves the last one


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs in which nobody dies."""
    return Whole(tmp_path_factory)


def newest(run):
    return max(int(one.name.removeprefix("step-")) for one in run.glob("step-*"))


@pytest.mark.parametrize("kills, how", [
    (["1:7:after step"], []),
    (["0:7:after step", "2:7:ending"], []),
    (["1:7:after update"], ["hears late"]),
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


@pytest.mark.parametrize("kill, how", [("1:9:step", []), ("1:9:after step", ["unsettled"])])
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
