"""DDP under `holdfast launch`: steps of ck.run() have the bits of a plain loop, hooks and all."""

import json

import pytest
from hooked import STEPS, train_in_turn
from ranks import run_ranks
from recovered_jobs import SCRIPT, Ran, Whole, launch


def train_under_launcher(tmp_path, ranks, *arguments):
    run, script = tmp_path / "run", SCRIPT.parent / "hooked.py"
    code, said = launch([script, run, *arguments], ranks=ranks, said=tmp_path / "said", timeout=100)
    assert code == 0, said
    return [json.loads((tmp_path / f"run.end.{rank}").read_text()) for rank in range(ranks)], said


@pytest.mark.parametrize("hook", ["none", "static"])
def test_three_ranks_have_the_bits_of_plain_ddp_from_the_first_step_on(tmp_path, hook):
    """DDP orders its buckets by the first pass, and on three ranks the order changes bits."""
    plain = run_ranks(3, train_in_turn, hook)
    found, said = train_under_launcher(tmp_path, 3, hook)
    assert found == plain
    assert len({*plain[0]["digests"]}) == STEPS and "called after the update" not in said, said


def test_power_sgd_trains_as_without_holdfast_and_a_rank_with_it_is_replaced_exactly(tmp_path):
    plain = run_ranks(2, train_in_turn, "power")
    assert plain[0]["count"] == STEPS
    (survivor, replacement), said = train_under_launcher(tmp_path, 2, "power", "1:4")
    assert "step 4 goes on after" in said and "replica, exact, 0 steps lost" in said, said
    assert survivor == plain[0]
    assert replacement == {**plain[1], "digests": [None] * 4 + plain[1]["digests"][4:]}


def test_a_death_before_ddp_has_ordered_its_buckets_restarts_all_ranks(tmp_path):
    plain = run_ranks(2, train_in_turn, "static")
    found, said = train_under_launcher(tmp_path, 2, "static", "1:1")
    assert "all ranks start again" in said and "DDP had not ordered the buckets of model yet" in said, said
    assert found == plain


def test_a_job_of_one_rank_trains_as_without_holdfast_and_begins_again_if_it_dies(tmp_path):
    plain = run_ranks(1, train_in_turn, "none")
    found, said = train_under_launcher(tmp_path, 1, "none", "0:3")
    assert "rank 0" in said and "start again" in said, said
    assert found == plain


def test_records_longer_than_the_queue_of_the_transport_keep_no_step_back(tmp_path, tmp_path_factory):
    """A buddy receives a record at its next gate; what ranks agree on in between comes over the same connection."""
    ran = Ran("ddp", tmp_path / "run", 5, ["1:3:after step"], ["own table"], ranks=2, timeout=60)
    ran.check(Whole(tmp_path_factory)("ddp", 5, ["own table"], ranks=2))
    assert "replica, exact, 0 steps lost" in ran.said, ran.said
