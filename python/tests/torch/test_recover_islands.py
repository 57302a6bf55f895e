"""Stages that are cut over ranks by FSDP2, and whose updates cannot be made again: if a rank is killed, all ranks of
its stage make their steps again together, and every bit is that of a run in which nobody died."""

import json
import os
import re

import pytest
from long_tests import LONG
from recovered_jobs import Ran
from test_recover_stages import POINTS
from test_recover_updates import check, check_restart

from holdfast.torch.recover import islands
from holdfast.torch.recover.call_log import CallLog

ISLANDS = [[0, 1], [2, 3]]
HOW = ["two updates", "waits"]


def test_groups_with_a_common_rank_are_one_island():
    assert islands.join_groups([[2, 3], [0, 1], [3, 5], [4]]) == [[0, 1], [2, 3, 5]]


@pytest.mark.parametrize("found, world", [([[0, 1], [2, 3]], 4), ([[1, 4], [0, 3]], 6), ([[0, 2, 5]], 6), ([], 3)])
def test_each_rank_has_a_buddy_in_another_island(found, world):
    outside = islands.ranks_outside(found, world)
    assert sorted(outside) == [*range(world)]
    assert all(outside[rank] not in islands.island_of(found, rank) for rank in range(world))


def test_what_ranks_of_an_island_exchange_is_not_kept():
    log = CallLog(os.memfd_create("log"))
    log.keeps_steps, log.inside = True, frozenset([0, 1])
    log.begin(1)
    for to, is_kept in ((1, False), (2, True)):
        assert log.keeps(log.key_of("pp", "send", (0, to)), [0, 1, 2, 3], is_sent=True) == is_kept
    for members, is_kept in (([0, 1], False), ([0, 1, 2, 3], True)):
        assert log.keeps(log.key_of("dp", "allreduce"), members) == is_kept


@pytest.mark.parametrize("room, expected", [(1600, []), (1300, [[1, 2]]), (700, [])])
def test_stages_are_joined_if_there_is_no_room_for_all_borders_and_joining_two_helps(room, expected):
    def told(rank):
        borders = {f"{rank}>{to}": 150 for to in (rank - 1, rank + 1) if 0 <= to < 4}
        return {"borders": borders, "bytes": sum(borders.values()) + 10, "room": room, "messages": 8,
                "own_seconds": 0.1 if rank in (0, 3) else 0.2}

    assert islands.plan_islands([told(rank) for rank in range(4)], 5) == expected


def check_islands(tmp_path, whole, kills, steps=10):
    """Runs two stages of two ranks with these kills. Returns how many steps were made again after each."""
    return check(tmp_path, whole, "sharded", kills, HOW, steps=steps, rung="messages", islands=ISLANDS)[1]


def test_a_stage_that_is_cut_over_ranks_makes_its_steps_again_together(tmp_path, whole):
    assert check_islands(tmp_path, whole, ["1:7:after backward"]) == [2]


@LONG
def test_stages_whose_messages_have_no_room_make_their_steps_again_together(tmp_path, whole):
    kills = ["1:27:after backward", "3:31:gate", "0:37:committed", "2:41:after step"]
    ran = Ran("stages", tmp_path / "run", 44, kills, ["keeps half", "waits"], ranks=4, timeout=240)
    told = re.search(r"if one of the ranks (.*) is lost, all of them make steps again together", ran.said)
    assert told, ran.said
    found = [json.loads(one) for one in told[1].split(" or ")]  # by the seconds of each stage: not always the same
    ran.check(whole("stages", 44, ranks=4), found)
    assert ran.said.count("messages, exact, 0 steps lost") == len(kills), ran.said
    together = sum(len(one) > 1 for kill in kills for one in found if int(kill[0]) in one)
    assert ran.said.count("ends, too: it makes steps again together with a lost rank") == together, ran.said


@LONG
@pytest.mark.parametrize("rank", range(4))
def test_each_rank_may_die_at_every_point(tmp_path, whole, rank):
    kills = [f"{rank}:{5 * k + 7}:{point}" for k, point in enumerate(POINTS)]
    assert all(check_islands(tmp_path, whole, kills, 5 * len(kills) + 5))


@LONG
def test_a_second_rank_of_the_island_dies_while_it_makes_steps_again(tmp_path, whole):
    ran = Ran("sharded", tmp_path / "run", 10, ["1:8:after backward", "0:7:replaying"], HOW, timeout=240)
    ran.check(whole("sharded", 10, ["two updates"]), ISLANDS)
    assert ": messages, exact, 0 steps lost, 3 replayed" in ran.said, ran.said


@LONG
def test_a_rank_outside_dies_while_an_island_makes_steps_again(tmp_path, whole):
    check_restart(tmp_path, whole, "sharded", "1:8:after backward,2:8:given", HOW,
                  "no rank is left that has the state")
