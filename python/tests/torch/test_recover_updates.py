"""A rank of FSDP2 or of tensor parallelism, whose parts of parameters no other rank has, is killed: its
replacement has the optimizer make the updates since the newest durable step again, from gradients that its
buddy has kept, and every bit is that of a run in which nobody died."""

import re

import pytest
from long_tests import LONG
from recovered_jobs import Ran
from test_recover_stages import POINTS

STEPS = 13
FOUND = re.compile(r"goes on after .*?: (\w+), exact, 0 steps lost, (\d+) replayed [(]")
NOT_TRAINING = {"auto", "waits", "other threads", "flips a bit", "other entry", "spills"}


def check(tmp_path, whole, kind, kills, how=(), *, steps=STEPS, rung="updates", islands=()):
    """Runs ranks with these kills. Returns what they said, and how much was made again after each."""
    ran = Ran(kind, tmp_path / "run", steps, kills, how, timeout=240)
    ran.check(whole(kind, steps, [one for one in how if one not in NOT_TRAINING]), islands)
    found = FOUND.findall(ran.said)
    assert [one for one, _ in found] == [rung] * len(kills), ran.said
    return ran.said, [int(number) for _, number in found]


def check_restart(tmp_path, whole, kind, kill, how, why, steps=10):
    """Runs ranks of which one is killed, after which all start again for that reason."""
    ran = Ran(kind, tmp_path / "run", steps, kill.split(","), how)
    ran.check_restart(whole(kind, steps, [one for one in how if one not in NOT_TRAINING]), why)


# Saves are durable behind steps 4 and 9.

def test_each_rank_of_fsdp_comes_back_by_its_updates(tmp_path, whole):
    made = check(tmp_path, whole, "fsdp", ["0:3:gate", "1:7:committed", "2:11:after step"], ["waits"])[1]
    assert made[0] == 3 and all(made), made


def test_each_rank_of_tensor_parallelism_comes_back_by_its_updates(tmp_path, whole):
    assert check(tmp_path, whole, "tensor", ["1:7:gate"], ["sgd", "waits"], steps=9)[1] == [2]


@LONG
def test_where_updates_cannot_be_made_again_messages_are_kept(tmp_path, whole):
    said, made = check(tmp_path, whole, "tensor", ["1:7:gate"], ["two updates", "waits"], steps=10, rung="messages")
    assert made == [2]
    assert ('Recover(log="updates"): a step makes several updates behind one gate; expected one ck.run() for '
            "each: messages are kept instead") in said


def test_with_other_threads_all_ranks_start_again(tmp_path, whole):
    check_restart(tmp_path, whole, "fsdp", "1:8:gate", ["other threads", "waits"],
                  "threads, and its replacement has", STEPS)


@LONG
@pytest.mark.parametrize("kind", ["fsdp", "tensor"])
@pytest.mark.parametrize("how, why", [
    ("flips a bit", "a record of update 8 has crc"),
    ("other entry", "the parameters before it are not those that the lost rank had"),
])
def test_a_damaged_entry_starts_all_ranks_again(tmp_path, whole, kind, how, why):
    check_restart(tmp_path, whole, kind, "1:8:gate", [how, "waits"], why)


@LONG
@pytest.mark.parametrize("how, why", [
    (["two updates"], "a step makes several updates behind one gate"),
    (["clamps"], "written to outside of an optimizer"),
    (["asks in the update"], "its optimizer calls allreduce of other ranks in its update"),
])
def test_where_nothing_can_be_kept_all_ranks_start_again(tmp_path, whole, how, why):
    check_restart(tmp_path, whole, "fsdp", "1:8:gate", how, why)


@LONG
@pytest.mark.parametrize("how", [[], ["auto"], ["adamax"], ["amsgrad"], ["fused"], ["spills"]], ids="-".join)
@pytest.mark.parametrize("kind", ["fsdp", "tensor"])
def test_every_rank_may_die_at_every_point(tmp_path, whole, kind, how):
    if kind == "tensor" and how in (["fused"], ["auto"]):
        pytest.skip("torch refuses fused AdamW for DTensors beside tensors; auto may take messages there")
    places = [(k % (3 if kind == "fsdp" else 2), point) for k, point in enumerate(POINTS)]
    # Each behind a durable step of its own: the entries that a lost buddy had are then not needed.
    kills = [f"{rank}:{5 * k + 7}:{point}" for k, (rank, point) in enumerate(places)]
    made = check(tmp_path, whole, kind, kills, [*how, "waits"], steps=5 * len(kills) + 5)[1]
    assert all(made), made


@LONG
def test_a_stage_that_is_cut_over_ranks_comes_back_part_by_part(tmp_path, whole):
    points = ["after backward", "gate", "committed", "after step"]
    kills = [f"{rank}:{5 * rank + 7}:{point}" for rank, point in enumerate(points)]
    assert all(check(tmp_path, whole, "sharded", kills, ["waits"], steps=25)[1])


@LONG
def test_the_buddy_of_a_lost_rank_may_not_die_with_it(tmp_path, whole):
    ran = Ran("fsdp", tmp_path / "run", 10, ["0:8:after backward", "1:8:after backward"], ["waits"])
    ran.check_restart(whole("fsdp", 10), "no other rank has it")
