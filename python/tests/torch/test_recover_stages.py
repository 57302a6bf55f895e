"""A pipeline stage that no other rank has is killed: its replacement makes the steps since the newest durable
one again alone, by what the others had said to it, and every bit is that of a run in which nobody died."""

import json
import re

import pytest
from long_tests import LONG, first_of
from recovered_jobs import Ran
from test_recover import STEP_POINTS

from holdfast.torch.recover.log_cost import find_excess

STEPS = 14
POINTS = [point for point in STEP_POINTS if point not in ("backward", "after forward")]
FOUND = re.compile(r"goes on after .*?: messages, exact, 0 steps lost, (\d+) replayed( by \d helpers)? [(]")


NOT_TRAINING = {"spills", "keeps little", "waits", "unsettled early", "2 helpers", "4 helpers"}


def check(tmp_path, whole, kills, how=(), ranks=None, steps=STEPS, alone=""):
    """Runs stages with these kills. Returns how many runs were made again after each.

    `alone` is a number of helpers that are wanted and not there.
    """
    ran = Ran("stages", tmp_path / "run", steps, kills, how, ranks, timeout=240)
    ran.check(whole("stages", steps, [one for one in how if one not in NOT_TRAINING], ranks))
    found = FOUND.findall(ran.said)
    assert len(found) == len(kills), ran.said
    helpers = {one[0] for one in how if one.endswith(" helpers")} - {alone}
    assert all(by == "".join(f" by {many} helpers" for many in helpers) for _, by in found), ran.said
    return [int(one) for one, _ in found]


def reasons(tmp_path):
    """Why each recovery of the run was as it was, without the tensor that no other rank had."""
    lines = [json.loads(line) for one in (tmp_path / "run").rglob("*.jsonl") for line in one.read_text().splitlines()]
    return [one["reason"].partition("no other rank has it")[2] for one in lines if one.get("event") == "recovered"]


def test_each_stage_comes_back_alone_wherever_it_dies(tmp_path, whole):
    # Saves are durable behind steps 4 and 9. The first kill is before there is any.
    kills = ["0:3:after backward", "1:6:gate", "2:8:committed", "0:11:after run", "2:12:after step"]
    replayed = check(tmp_path, whole, kills)
    assert replayed[0] == 3 and all(replayed), replayed


def test_a_stage_that_dies_behind_a_durable_step_makes_none_again(tmp_path, whole):
    assert check(tmp_path, whole, ["1:5:forward"], ["waits"], steps=8) == [0]


@pytest.mark.parametrize("kill, made", first_of([("1:7:after backward", 1), ("2:6:forward", 0)], 1))
def test_a_loop_that_saves_itself_does_not_save_the_step_again_that_it_begins_behind(tmp_path, whole, kill, made):
    assert check(tmp_path, whole, [kill], ["saves", "waits for saves"], steps=9) == [made]


def test_where_none_is_made_again_other_threads_are_seen(tmp_path, whole):
    ran = Ran("stages", tmp_path / "run", 8, ["1:5:forward"], ["waits", "other threads"])
    ran.check_restart(whole("stages", 8), "threads: differs from what the lost rank had told")


@pytest.mark.parametrize("how", first_of([["4 helpers"], ["2 helpers"], ["2 helpers", "gpipe"],
                                          ["4 helpers", "adds up"]], 1), ids="-".join)
def test_processes_share_the_micro_batches_of_each_stage_and_the_bits_are_the_same(tmp_path, whole, how):
    kills = ["2:3:after backward", "1:8:gate", "0:12:committed"]
    replayed = check(tmp_path, whole, kills, [*how, "no statistics", "returns outputs"])
    assert replayed[0] == 3 and all(replayed), replayed


@pytest.mark.parametrize("how", first_of([["a helper dies later"], ["a helper dies"]], 0), ids="-".join)
def test_a_helper_that_dies_leaves_the_replacement_alone(tmp_path, whole, how):
    ran = Ran("stages", tmp_path / "run", STEPS, ["1:8:after backward"], ["4 helpers", "no statistics", *how])
    assert ran.code == 0 and (tmp_path / "run.helper").exists(), ran.said
    ran.check_end(whole("stages", STEPS, ["no statistics"]))
    assert len(FOUND.findall(ran.said)) == 1 and "all ranks start again" not in ran.said, ran.said
    assert reasons(tmp_path) == ["; no helpers: one of them has died"]


def test_a_stage_whose_forward_passes_write_to_buffers_is_made_again_by_one_process(tmp_path, whole):
    check(tmp_path, whole, ["1:5:forward"], ["2 helpers"], steps=8, alone="2")
    assert reasons(tmp_path) == ["; no helpers: forward passes write to buffers"]


@LONG
def test_messages_that_do_not_fit_into_memory_come_back_from_a_folder(tmp_path, whole):
    assert check(tmp_path, whole, ["1:8:after backward"], ["spills"])[0] >= 3


def test_the_log_outlives_a_save_that_is_durable_on_other_ranks_only(tmp_path, whole):
    assert check(tmp_path, whole, ["1:7:after backward"], ["unsettled early"], steps=9) == [7]


@LONG
def test_if_messages_cost_one_rank_too_much_no_rank_keeps_them_any_more(tmp_path, whole):
    ran = Ran("stages", tmp_path / "run", 26, ["1:24:gate"], ["keeps slowly"])
    ran.check_restart(whole("stages", 26), "rank 0 keeps no messages: to keep messages takes")
    for rank in range(3):
        events = (tmp_path / f"run/events/rank-{rank:04}.jsonl").read_text()
        assert events.count('"event":"messages_kept"') == 1, ran.said


@pytest.mark.parametrize("kind, seconds, why", [
    ("messages", [0.0, 0.003, 0.0], "to keep messages takes 3.0% of a step"), ("messages", [0.0019] * 3, ""),
    ("updates", [0.0, 0.05, 0.05], ""),  # the others have waited for the last one
    ("updates", [0.03, 0.05, 0.05], "to keep updates takes 30.0% of a step"),
])
def test_what_a_log_costs_is_judged_by_all_ranks_together(kind, seconds, why):
    assert find_excess([{"seconds": one, "step_seconds": 0.1} for one in seconds], kind) == why


@LONG
def test_a_long_result_for_all_ranks_is_refused_with_a_log_of_messages(tmp_path):
    ran = Ran("stages", tmp_path / "run", 6, how=["sums much"])
    assert ran.code != 0 and ("a step calls allreduce of 2097152 bytes in group 0: 3 of 3 ranks would make steps again "
                              "together; expected at most half") in ran.said, ran.said


@LONG
def test_a_replacement_that_dies_while_it_makes_steps_again_is_replaced(tmp_path, whole):
    ran = Ran("stages", tmp_path / "run", STEPS, ["1:8:after backward", "1:7:replaying"])
    ran.check(whole("stages", STEPS))
    assert FOUND.findall(ran.said) and ran.said.count("rank 1 starts again") == 2, ran.said


@LONG
def test_a_neighbour_that_dies_while_steps_are_made_again_starts_all_ranks_again(tmp_path, whole):
    ran = Ran("stages", tmp_path / "run", STEPS, ["1:8:after backward", "0:8:given"])
    ran.check_restart(whole("stages", STEPS), "expected what other ranks said")


@LONG
def test_a_second_death_of_the_same_stage_or_of_another_one(tmp_path, whole):
    check(tmp_path, whole, ["1:7:forward", "1:8:forward", "2:9:after update"])


@pytest.mark.parametrize("how, why", [
    pytest.param(["keeps nothing"], "keeps no messages: log=None", marks=LONG),
    (["keeps little"], "has not kept all messages since step"),
    (["loses a message"], "no message 5 from rank 0 to rank 1 of update 7"),
    pytest.param(["other messages"], "seal: differs from what the lost rank had told", marks=LONG),
    (["other threads"], "threads: differs from what the lost rank had told"),
    pytest.param(["spoils a weight"], "seal: differs from what the lost rank had told", marks=LONG),
], ids=lambda one: "-".join(one) if isinstance(one, list) else "")
def test_without_all_messages_or_with_other_bits_all_ranks_start_again(tmp_path, whole, how, why):
    ran = Ran("stages", tmp_path / "run", STEPS, ["1:8:after backward"], how)
    ran.check_restart(whole("stages", STEPS), why)


@LONG
def test_neighbours_that_die_together_start_all_ranks_again(tmp_path, whole):
    ran = Ran("stages", tmp_path / "run", STEPS, ["0:8:after backward", "1:8:after backward"])
    ran.check_restart(whole("stages", STEPS), "expected what other ranks said")


@LONG
@pytest.mark.parametrize("rank", range(3))
def test_each_stage_may_die_in_every_slot_of_the_schedule(tmp_path, whole, rank):
    slots = 12 * (1 + (rank == 1)) + 1  # six micro-batches there and back over each border, and the norm
    kills = [f"{rank}:{2 + slot}:call {slot}" for slot in range(slots)]
    check(tmp_path, whole, kills, steps=slots + 5)


@LONG
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("how", [[], ["gpipe"], ["interleaved"], ["zero bubble"]], ids="-".join)
def test_every_stage_may_die_at_every_point(tmp_path, whole, how, ranks):
    places = [(rank, point) for point in POINTS for rank in range(ranks)]
    kills = [f"{rank}:{2 + k}:{point}" for k, (rank, point) in enumerate(places)]
    check(tmp_path, whole, kills, how, ranks, steps=len(kills) + 5)
