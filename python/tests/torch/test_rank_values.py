"""Plain values of objects that differ by rank: which rank gets which value after a resume."""

from grouped import grouped
import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau

import holdfast
from holdfast.torch.state.rank_values import choose_values


class Tracker:
    """An object whose counter differs by rank."""

    def __init__(self, rank=0):
        self.values = {"seen": 3 + 30 * rank, "best": {"loss": 0.5 - rank, "nan": float("nan")}}

    def state_dict(self):
        return self.values

    def load_state_dict(self, state):
        self.values = state


def script(run, steps, rank, world, tracker, **options):
    """Trains so many steps on this rank. Returns the checkpointer and the optimizer."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, objects={"tracker": tracker},
                               every="1 steps",
                               **grouped(space_reserve=0, **options)) as checkpointer:
        for step in range(checkpointer.resume(), steps):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            checkpointer.step(step)
    return checkpointer


def saved_and_resumed(rank, world, run, first, then):
    script(run, 1, rank, world, Tracker(rank), rules=first)
    tracker = Tracker(7)
    checkpointer = script(run, 1, rank, world, tracker, rules=then)
    return tracker.values["seen"], tracker.values["best"]["loss"], checkpointer.report.inexact


def test_each_rank_gets_its_own_values_back(tmp_path):
    assert run_ranks(2, saved_and_resumed, str(tmp_path), None, None) == [
        (3, 0.5, []), (33, -0.5, [])]


@pytest.mark.parametrize("rules, seen, losses, differ", [
    ({"tracker": "own"}, [3, 33], [0.5, -0.5], None),
    ({"tracker": "first"}, [3, 3], [0.5, 0.5], None),
    ({"tracker": "equal"}, [3, 3], [0.5, 0.5], "tracker: the 2 ranks that saved had different"),
    ({"tracker.best": "first"}, [3, 33], [0.5, 0.5], None),
    ({"tracker.s*": "equal"}, [3, 3], [0.5, -0.5], "tracker.seen: the 2 ranks"),
])
def test_a_rule_says_whose_values_count(tmp_path, rules, seen, losses, differ):
    answers = run_ranks(2, saved_and_resumed, str(tmp_path), rules, rules)
    assert [one[0] for one in answers] == seen and [one[1] for one in answers] == losses
    for *_, inexact in answers:
        assert inexact == [] if differ is None else inexact[0].startswith(differ)


def two_ranks(rank, world, run, equal, spec):
    script(run, 1, rank, world, Tracker(0 if equal else rank), rules=spec)


def test_on_another_number_of_ranks_values_that_differ_are_named(tmp_path):
    run_ranks(2, two_ranks, str(tmp_path / "a"), False, None)
    tracker = Tracker(7)
    checkpointer = script(tmp_path / "a", 1, 0, 1, tracker)
    assert tracker.values["seen"] == 3
    assert any("tracker.seen, tracker.best.loss: the 2 ranks" in line
               for line in checkpointer.report.inexact)
    run_ranks(2, two_ranks, str(tmp_path / "b"), True, None)
    checkpointer = script(tmp_path / "b", 1, 0, 1, tracker)
    assert not any("tracker" in line for line in checkpointer.report.inexact)


def test_on_another_number_of_ranks_what_is_each_ranks_own_is_refused(tmp_path):
    run_ranks(2, two_ranks, str(tmp_path), True, {"tracker.seen": "own"})
    with pytest.raises(ValueError, match="tracker.seen: each of 2 ranks saved its own"):
        script(tmp_path, 1, 0, 1, Tracker(), rules={"tracker.seen": "own"})
    tracker = Tracker(7)
    script(tmp_path, 1, 0, 1, tracker, rules={"tracker.seen": "first"})
    assert tracker.values["seen"] == 3


class Tensors(Tracker):
    def __init__(self, rank=0):
        self.values = {"t": torch.full((2,), float(rank)), "seen": rank}


def own_tensors(rank, world, run):
    for life in range(2):
        tracker = Tensors(rank if life == 0 else 7)
        script(run, 1, rank, world, tracker, rules={"tracker": "own"})
    return tracker.values["t"].tolist(), tracker.values["seen"]


def test_a_rule_for_an_object_is_for_its_tensors_too(tmp_path):
    assert run_ranks(2, own_tensors, str(tmp_path)) == [([0, 0], 0), ([1, 1], 1)]


def plateau(rank, world, run, steps, crash=None):
    """Trains with a scheduler to which each rank gives its own loss, as many scripts do."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2)) if world > 1 else nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, scheduler=scheduler,
                               every="1 steps",
                               writing=holdfast.Writing(space_reserve=0)) as checkpointer:
        start = checkpointer.resume()
        for step in range(start, steps):
            optimizer.zero_grad()
            (model(torch.ones(2, 4)).sum() * 0).backward()
            optimizer.step()
            scheduler.step(step if rank == 1 else -step)
            checkpointer.step(step)
    return start, optimizer.param_groups[0]["lr"], checkpointer.report.inexact


def test_a_plateau_fed_with_losses_of_a_rank_is_resumed_on_as_many_ranks(tmp_path):
    wanted = run_ranks(2, plateau, str(tmp_path / "a"), 4)
    assert [lr for _, lr, _ in wanted] == [1.0, 0.125]
    run_ranks(2, plateau, str(tmp_path / "b"), 2)
    assert run_ranks(2, plateau, str(tmp_path / "b"), 4) == [(2, 1.0, []), (2, 0.125, [])]


def test_a_plateau_fed_with_losses_of_a_rank_is_resumed_on_others_and_said_so(tmp_path):
    run_ranks(2, plateau, str(tmp_path), 3)
    start, lr, inexact = plateau(0, 1, tmp_path, 3)
    assert (start, lr) == (3, 1.0)
    assert any("scheduler.best" in line for line in inexact)
    assert any("optimizer.weight" in line and "hyper-parameters" in line for line in inexact)


def test_values_are_chosen_by_path():
    trees = [{"a": {"x": 1}, "b": [1], 3: float("nan")}, {"a": {"x": 2}, "b": [1], 3: float("nan")}]
    for mine, x in [(0, 1), (1, 2), (None, 1)]:
        differing = []
        chosen = choose_values("t", trees, mine, {}, differing)
        assert chosen["a"]["x"] == x and chosen["b"] == [1]
        assert differing == ([] if mine is not None else ["t.a.x"])
    differing = []
    assert choose_values("t", [{"a": 1}, {"a": 1, "b": 2}], None, {}, differing) == {"a": 1}
    assert differing == ["t.b"]


def older(rank, world, run):
    """Makes a checkpoint with rank 0's values only, as older versions wrote it."""
    script(run, 1, rank, world, Tracker(rank), rules={"tracker": "first"})
    tracker = Tracker(7)
    checkpointer = script(run, 1, rank, world, tracker)
    return tracker.values["seen"], checkpointer.report.inexact


def test_a_checkpoint_with_values_of_one_rank_alone_is_resumed(tmp_path):
    assert run_ranks(2, older, str(tmp_path)) == [(3, []), (3, [])]


def test_a_rule_that_is_none_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="tracker: rule 'mine'"):
        script(tmp_path, 1, 0, 1, Tracker(), rules={"tracker": "mine"})


def statistics(rank, world, run):
    """Trains a BatchNorm whose statistics differ by rank."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    model[1].running_mean.fill_(rank)
    if world > 1:
        model = DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1000 steps",
                               writing=holdfast.Writing(space_reserve=0)) as checkpointer:
        checkpointer.resume()
        checkpointer.save(0).durable()
    return checkpointer.report.inexact


def test_tensors_of_each_rank_are_named_on_another_number_of_ranks(tmp_path):
    assert run_ranks(2, statistics, str(tmp_path)) == [[], []]
    assert run_ranks(2, statistics, str(tmp_path)) == [[], []]
    assert any(line.startswith("model.1.running_mean, model.1.running_var, ")
               and "each of 2 ranks saved its own" in line
               for line in statistics(0, 1, tmp_path))
