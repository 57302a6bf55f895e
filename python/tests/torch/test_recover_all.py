"""Recovery in all cases: every rank is killed at every place, in all layouts, and with what trainings do
else. Every bit is that of a run in which nobody died. Needs HOLDFAST_LONG=1, and takes some minutes.

One job survives many kills, one in each step.
"""


import pytest
from long_tests import LONG
from recovered_jobs import RANKS, Ran
from test_recover import PHASES, STEP_POINTS

pytestmark = LONG

FIRST = 2  # the first step in which a rank is killed
# Places that a kind of training does not have.
MISSING = {"ddp": (), "hsdp": ("backward",), "pipeline": ("backward", "after forward")}
AFTER_GATE = ("committed", "after update", "end", "after run", "step", "after step")


def points_of(kind):
    return [point for point in STEP_POINTS if point not in MISSING[kind]]


def check(tmp_path, whole, kind, kills, how=(), ranks=None):
    """Runs a training with these kills, and compares it with one without."""
    steps = max(int(kill.split(":")[1]) for kill in kills if ":*:" not in kill) + 3
    ran = Ran(kind, tmp_path / "run", steps, kills, how, ranks, timeout=240)
    ran.check(whole(kind, steps, how, ranks))


@pytest.mark.parametrize("kind, ranks", [("ddp", 2), ("ddp", 3), ("ddp", 4), ("hsdp", 4),
                                         ("pipeline", 4)])
def test_every_rank_may_die_at_every_point(tmp_path, whole, kind, ranks):
    places = [(rank, point) for point in points_of(kind) for rank in range(ranks)]
    check(tmp_path, whole, kind,
          [f"{rank}:{FIRST + k}:{point}" for k, (rank, point) in enumerate(places)], ranks=ranks)


@pytest.mark.parametrize("how", [
    ["micro"], ["views"], ["static"], ["unused"], ["lbfgs"], ["static", "views"],
    ["views", "micro", "scaler"], ["micro", "unused", "reads", "table", "counts"],
], ids="-".join)
def test_a_rank_may_die_at_every_point_of(tmp_path, whole, how):
    # Two ranks must not die at once, so there is a step between two kills.
    check(tmp_path, whole, "ddp",
          [f"{k % 3}:{FIRST + 2 * k}:{point}" for k, point in enumerate(points_of("ddp"))], how)


@pytest.mark.parametrize("first", [0, 1], ids=["updates", "no updates"])
def test_a_rank_may_die_where_a_scaler_skips_updates(tmp_path, whole, first):
    """All kills are in steps whose gradients are finite, or in steps in which they are not."""
    points = [point for point in points_of("ddp") if not (first and point == "in update")]
    check(tmp_path, whole, "ddp",
          [f"{k % 3}:{4 + 4 * k + first}:{point}" for k, point in enumerate(points)], ["scaler"])


@pytest.mark.parametrize("kind, far", [("ddp", 2), ("ddp", 1), ("ddp", 3), ("pipeline", 2)])
def test_every_rank_may_die_while_another_is_replaced(tmp_path, whole, kind, far):
    # In a pipeline, ranks that are no replicas of each other; otherwise also those that keep each
    # other's records.
    places = [(rank, point) for point in PHASES for rank in range(4)]
    kills = [kill for k, (rank, point) in enumerate(places) for kill in (
        f"{(rank + far) % 4}:{FIRST + k}:after backward", f"{rank}:{FIRST + k}:{point}")]
    check(tmp_path, whole, kind, kills, ranks=4)


@pytest.mark.parametrize("kind", RANKS)
def test_every_rank_may_die_as_soon_as_another_is_whole(tmp_path, whole, kind):
    ranks = RANKS[kind]
    kills = [kill for rank in range(ranks) for kill in (
        f"{(rank + 1) % ranks}:{FIRST + 2 * rank}:forward", f"{rank}:{FIRST + 2 * rank}:joined")]
    check(tmp_path, whole, kind, kills)


@pytest.mark.parametrize("kind", RANKS)
def test_every_replacement_may_die(tmp_path, whole, kind):
    kills = [kill for rank in range(RANKS[kind]) for kill in (
        f"{rank}:{FIRST + 2 * rank}:forward", f"{rank}:*:started", f"{rank}:*:filled")]
    check(tmp_path, whole, kind, kills)


@pytest.mark.parametrize("kind", RANKS)
@pytest.mark.parametrize("point", ["forward", "after backward", "gate", "in update", "after step"])
def test_a_rank_may_die_in_the_first_steps(tmp_path, whole, kind, point):
    """In the first step all ranks begin anew, before or behind its update."""
    ran = Ran(kind, tmp_path / "run", 6, [f"1:0:{point}", f"2:1:{point}"])
    assert ran.code == 0 and ran.killed == set(ran.kills), ran.said
    ran.check_end(whole(kind, 6))
    assert "not exact" not in ran.said, ran.said


@pytest.mark.parametrize("point", AFTER_GATE[:3])
def test_all_ranks_restart_if_a_rank_dies_between_two_calls_of_a_closure(tmp_path, whole, point):
    how = ["lbfgs", "searches"]
    ran = Ran("ddp", tmp_path / "run", 12, [f"1:8:{point}"], how)
    assert ran.code == 0 and ran.killed == set(ran.kills), ran.said
    ran.check_end(whole("ddp", 12, how))


def test_a_closure_that_is_called_again_is_made_again_if_a_rank_dies_before_the_gate(tmp_path, whole):
    points = [point for point in points_of("ddp") if point not in AFTER_GATE]
    check(tmp_path, whole, "ddp",
          [f"{k % 3}:{FIRST + 2 * k}:{point}" for k, point in enumerate(points)],
          ["lbfgs", "searches"])


def test_replicas_of_a_shard_that_die_together_restart_all_ranks(tmp_path, whole):
    kills = [kill for rank in range(2) for kill in (
        f"{rank}:{FIRST + 6 * rank}:forward", f"{rank + 2}:{FIRST + 6 * rank}:dropped")]
    ran = Ran("hsdp", tmp_path / "run", 14, kills)
    ran.check_restart(whole("hsdp", 14), "")
