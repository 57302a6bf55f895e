"""holdfast.Watch on several ranks: replicas are compared, and all ranks do the same."""

import pytest
import torch
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel
from watched_net import STEPS, Lines, Net, events, make, same, values

import holdfast
from holdfast.torch.watch.costs import Costs, Plan
from holdfast.torch.watch.comparison import _suspects
from holdfast.torch.watch.replica_groups import Part
from holdfast.torch.watch.windows import Windows


def strike(now, step, rank, ck, strikes):
    """Flips bits that leave numbers finite: with others, all ranks soon have nothing but NaN."""
    for when, at, who, flips, *bits in strikes:
        if (when, at, who) == (now, step, rank):
            plan = holdfast.flip_plan(ck, tensors=["model.fc.weight"], bits=[*bits, "0-20"][0],
                                      flips=flips)
            holdfast.inject(ck, plan)


def ranks_train(rank, world, run, steps, strikes, watch, every="never"):
    """Trains on all ranks; `strikes` are (when, step, rank, number of flips)."""
    lines = Lines()
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    error = None
    ck = make(run, model, optimizer, every, watch=watch)
    try:
        for step in range(steps):
            torch.manual_seed(step * 10 + rank)
            model(torch.randn(4, 2, 4, 4)).square().mean().backward()
            strike("after backward", step, rank, ck, strikes)
            optimizer.step()
            optimizer.zero_grad()
            strike("after update", step, rank, ck, strikes)
            ck.step(step)
    except holdfast.CorruptError as raised:
        error = str(raised)
        ck.leave(raised)  # the last save may have failed, which close() would raise
    else:
        ck.close(save=False)
    alarms = [(a.rank, a.tensor, a.mended, a.cause) for a in ck.watched.alarms]
    return {"values": values(model.module, optimizer), "alarms": alarms, "error": error,
            "lines": lines.lines}


RESTING, UPDATED = "after backward", "after update"


def test_a_flip_on_one_of_two_ranks_is_mended_by_its_seal_and_told_to_all(tmp_path):
    clean = run_ranks(2, ranks_train, tmp_path / "clean", 20, [], {})
    assert clean[0]["alarms"] == clean[1]["alarms"] == []
    hurt = run_ranks(2, ranks_train, tmp_path / "hurt", 20, [(RESTING, 6, 1, 1)], {})
    for one, other in zip(clean, hurt, strict=True):
        assert same(one["values"], other["values"])
        assert [alarm[:3] for alarm in other["alarms"]] == [(1, "model.fc.weight", "seal")]
    assert len(events(tmp_path / "hurt", 1)) == 1 and not events(tmp_path / "hurt", 0)


@pytest.mark.parametrize("flips", [1, 40])
def test_three_ranks_mend_a_replica_by_their_majority(tmp_path, flips):
    """The flip comes between the update and step(): no window is open, but replicas differ."""
    done = run_ranks(3, ranks_train, tmp_path / "run", 20, [(UPDATED, 6, 2, flips)], {})
    for one in done:
        assert one["error"] is None
        assert {alarm[:3] for alarm in one["alarms"]} == {(2, "model.fc.weight", "replicas")}
        assert "the other ranks agree on another value" in one["alarms"][0][3]
        assert same(one["values"], done[0]["values"])


def test_a_replica_that_a_save_finds_is_mended_by_the_majority(tmp_path):
    """The windows are too seldom to find it, but a save compares all of a small model."""
    done = run_ranks(3, ranks_train, tmp_path / "run", 40, [(UPDATED, 20, 2, 1)],
                     {"share": 1e-9}, "2 steps")
    for one in done:
        assert one["error"] is None
        assert {alarm[:3] for alarm in one["alarms"]} == {(2, "model.fc.weight", "replicas")}
        assert not [line for line in one["lines"] if "hold it with different values" in line]
        assert same(one["values"], done[0]["values"])


SELDOM = {"share": 1e-9}  # the windows are too seldom to find a flip, so that a save finds it


def test_stop_also_means_a_replica_that_a_save_finds(tmp_path):
    done = run_ranks(3, ranks_train, tmp_path / "run", 40, [(UPDATED, 20, 2, 1)],
                     {**SELDOM, "on_alarm": "stop"}, "2 steps")
    assert done[0]["error"] is not None
    assert done[0]["error"] == done[1]["error"] == done[2]["error"]
    assert "rank 2: model.fc.weight" in done[0]["error"]
    assert "the other ranks agree on another value" in done[0]["error"]
    assert not list((tmp_path / "run").glob("step-*3[0-9]"))  # nothing was saved after it


def test_a_tie_that_a_save_finds_stops_both_ranks_alike(tmp_path):
    done = run_ranks(2, ranks_train, tmp_path / "run", 40, [(UPDATED, 20, 1, 1)], SELDOM, "2 steps")
    assert done[0]["error"] == done[1]["error"]
    assert "rank 0 and rank 1 hold different values" in done[0]["error"]


def test_warn_tells_of_a_replica_that_a_save_finds_once_and_saves_each_ranks_own(tmp_path):
    done = run_ranks(3, ranks_train, tmp_path / "run", 40, [(UPDATED, 20, 2, 1)],
                     {**SELDOM, "on_alarm": "warn"}, "2 steps")
    for one in done:
        assert one["error"] is None
        assert [alarm[:3] for alarm in one["alarms"]] == [(2, "model.fc.weight", "")]
        assert len([line for line in one["lines"] if "each rank's own are saved" in line]) == 1
    newest = holdfast.open(max((tmp_path / "run").glob("step-*")))
    assert newest.read("model.fc.weight@rank2").tobytes() == (
        done[2]["values"]["model.fc.weight"].tobytes())


def test_damage_that_has_reached_all_ranks_is_told(tmp_path):
    """One rank's huge weights make all gradients NaN, and so all weights, before the ranks meet."""
    done = run_ranks(3, ranks_train, tmp_path / "run", 20, [(UPDATED, 6, 2, 40, "30")], {})
    for one in done:
        assert one["error"] is None
        assert {(alarm[0], alarm[2]) for alarm in one["alarms"]} == {(2, "itself")}
        assert "what it did meanwhile may have reached all ranks" in one["lines"][0]


def test_many_words_in_a_window_are_mended_from_the_other_rank(tmp_path):
    """Two ranks: the seal shows which of them has changed, so that the other one is right."""
    done = run_ranks(2, ranks_train, tmp_path / "run", 20, [(RESTING, 6, 1, 40)], {})
    for one in done:
        assert one["error"] is None
        assert [alarm[:3] for alarm in one["alarms"]] == [(1, "model.fc.weight", "replicas")]
        assert same(one["values"], done[0]["values"])


def test_two_replicas_that_differ_without_a_witness_stop_both_ranks_alike(tmp_path):
    done = run_ranks(2, ranks_train, tmp_path / "run", 20, [(UPDATED, 6, 1, 1)], {})
    assert done[0]["error"] == done[1]["error"]
    assert "rank 0 and rank 1 hold different values" in done[0]["error"]


def test_stop_is_alike_on_all_ranks(tmp_path):
    done = run_ranks(3, ranks_train, tmp_path / "run", 20, [(RESTING, 6, 0, 1)],
                     {"on_alarm": "stop"})
    assert done[0]["error"] is not None
    assert done[0]["error"] == done[1]["error"] == done[2]["error"]
    assert "rank 0: model.fc.weight" in done[0]["error"]


def test_warn_goes_on(tmp_path):
    done = run_ranks(2, ranks_train, tmp_path / "run", 20, [(RESTING, 6, 0, 1)],
                     {"on_alarm": "warn"})
    for one in done:
        assert one["error"] is None and one["alarms"]
        assert one["alarms"][0][:3] == (0, "model.fc.weight", "")


def long_train(rank, world, run, steps):
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with make(run, model, optimizer) as ck:
        for step in range(steps):
            torch.manual_seed(step * 10 + rank)
            model(torch.randn(4, 2, 4, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            ck.step(step)
        return ck.watched.alarms


def test_two_ranks_without_faults_have_no_alarm(tmp_path):
    assert run_ranks(2, long_train, tmp_path / "run", STEPS, timeout=900) == [[], []]


def accumulating_train(rank, world, run, forgets):
    """Updates every second step. Returns the windows that were opened, by step."""
    opened, plain = {}, Windows.open

    def note(self, step, number):
        window = plain(self, step, number)
        opened[step] = list(window.ranges.values())
        return window

    Windows.open, Costs.plan = note, lambda self: Plan(1, 250_000, 10)
    model = torch.nn.Linear(500, 500, bias=False)  # 4 windows
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with make(run, DistributedDataParallel(model), optimizer) as ck:
        for step in range(40):
            if step % 2 == 0:
                optimizer.step()
            ck.step(step)
            if step == 13 and rank == forgets:
                ck._watch.forget()
        return opened, len(ck.watched.alarms)


def test_ranks_that_accumulate_gradients_open_the_same_windows(tmp_path):
    (one, alarms), (other, others) = run_ranks(2, accumulating_train, tmp_path / "run", None)
    assert one == other and list(one) == list(range(0, 40, 2)) and alarms == others == 0
    windows = list(one.values())
    assert windows[:4] == windows[4:8] and len({str(each) for each in windows}) == 4


def test_a_rank_that_opened_fewer_windows_gets_the_turn_of_the_others(tmp_path):
    (one, alarms), (other, others) = run_ranks(2, accumulating_train, tmp_path / "run", 1)
    assert alarms == others == 0 and set(one) > set(other)
    assert all(one[step] == other[step] for step in other) and max(other) == 38


def test_only_equal_windows_are_compared():
    ranks = [{"flagged": [], "seen": {"7": {"0": window}}}
             for window in ([0, 2, "aa"], [2, 3, "bb"], [2, 3, "bb"])]
    assert _suspects(ranks) == set()
    ranks.append({"flagged": [], "seen": {"7": {"0": [2, 3, "cc"]}}})
    assert _suspects(ranks) == {Part(0, 2)}


def blind_spots(rank, world, run, struck):
    """Faults that no watch can see: in a gradient before the ranks sum it, and in a buffer."""
    torch.manual_seed(0)
    net = Net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if rank == 1:
        net.fc.weight.register_hook(lambda gradient: gradient * 2 if struck == "gradient" else None)
    with make(run, model, optimizer) as ck:
        for step in range(8):
            if step == 5 and struck == f"buffer of rank {rank}":
                plan = holdfast.flip_plan(ck, tensors=["model.norm.running_mean"], bits="30")
                holdfast.inject(ck, plan)
            torch.manual_seed(step * 10 + rank)
            model(torch.randn(4, 2, 4, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            ck.step(step)
            if step == 5:
                mean = net.norm.running_mean.abs().max().item()
        return ck.watched.alarms, net.fc.weight.detach().clone().numpy(), mean


@pytest.mark.parametrize(("struck", "spreads"), [
    ("gradient", False), ("buffer of rank 1", False), ("buffer of rank 0", True)])
def test_what_ddp_spreads_or_erases_is_no_alarm(tmp_path, struck, spreads):
    (alarms, one, mean), (others, other, last) = run_ranks(2, blind_spots, tmp_path / "run", struck)
    assert alarms == others == []
    assert one.tobytes() == other.tobytes()  # the sum of the gradients is wrong on both alike
    # DDP sends the buffers of rank 0 to all before each forward pass.
    assert (mean > 1e6) == (last > 1e6) == spreads
