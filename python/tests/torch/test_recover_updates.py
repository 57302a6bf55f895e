"""A rank of FSDP2 or of tensor parallelism, whose parts of parameters no other rank has, is killed: its
replacement has the optimizer make the updates since the newest durable step again, from gradients that its
buddy has kept, and every bit is that of a run in which nobody died."""

import re

import pytest
from long_tests import LONG
from recovered_jobs import RANKS, Ran, Whole
from test_recover_stages import POINTS

STEPS = 14
FOUND = re.compile(r"goes on after .*?: updates, exact, 0 steps lost, (\d+) replayed [(]")
CONTROLS = {"other threads", "spoils a weight", "flips a bit", "other entry"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs in which nobody dies."""
    return Whole(tmp_path_factory)


def check(tmp_path, whole, kind, kills, how=(), steps=STEPS):
    """Runs ranks with these kills. Returns how many updates were made again after each."""
    ran = Ran(kind, tmp_path / "run", steps, kills, how)
    ran.check(whole(kind, steps, [one for one in how if one not in ("auto", "waits")]))
    found = [int(one) for one in FOUND.findall(ran.said)]
    assert len(found) == len(kills), ran.said
    return found


def check_restart(tmp_path, whole, kind, kill, how, why, steps=10):
    """Runs ranks of which one is killed, after which all start again for that reason."""
    ran = Ran(kind, tmp_path / "run", steps, [kill], how)
    ran.check_restart(whole(kind, steps, [one for one in how if one not in CONTROLS]), why)


def test_each_rank_of_fsdp_comes_back_by_its_updates(tmp_path, whole):
    # Saves are durable behind steps 4 and 9. The first kill is before there is any.
    kills = ["0:3:gate", "1:6:committed", "2:8:after update", "0:11:after step"]
    replayed = check(tmp_path, whole, "fsdp", kills)
    assert replayed[0] == 3 and all(replayed), replayed


def test_each_rank_of_tensor_parallelism_comes_back_by_its_updates(tmp_path, whole):
    kills = ["1:3:after backward", "0:7:gate", "1:8:committed", "0:12:forward"]
    assert all(check(tmp_path, whole, "tensor", kills, ["sgd"]))
