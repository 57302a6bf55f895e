"""Metrics that the program reports are saved, and retention keeps the best steps by them."""

import math

import pytest
import torch
from ranks import run_ranks
from torch import nn

import holdfast
from holdfast.torch.loop import metrics as reported

KEEP = holdfast.Keep(1, best=1, metric="val_acc", order="max")


def train(run, steps, tell, keep=KEEP, every="1 steps", first=0, wrap=lambda model: model):
    """Calls tell(ck, step) after each update."""
    model = wrap(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every=every, keep=keep,
                               writing=holdfast.Writing(space_reserve=0),
                               failures=holdfast.Failures(signals=False)) as ck:
        ck.resume()
        for step in range(first, first + steps):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            tell(ck, step)


def saved(run):
    return {int(path.name[5:13]): holdfast.restore(run, {}, int(path.name[5:13])).metrics
            for path in sorted(run.glob("step-????????"))}


SCORES = [0.1, 0.2, 0.9, 0.3, 0.4]


@pytest.mark.parametrize("kind", [float, torch.tensor, lambda score: torch.tensor([score])])
def test_the_best_step_by_a_metric_of_step_is_kept(tmp_path, kind):
    train(tmp_path, 5, lambda ck, step: ck.step(step, loss=1.0,
                                                metrics={"val_acc": kind(SCORES[step])}))
    kept = saved(tmp_path)
    assert list(kept) == [2, 4] and kept[2]["val_acc"] == pytest.approx(0.9)
    assert kept[2]["loss"] == 1.0


def test_the_end_has_the_loss_of_its_own_step(tmp_path):
    for run, losses in (("told", [3.0, 2.0, 1.0]), ("not told", [3.0, 2.0, None])):
        train(tmp_path / run, 3, lambda ck, step: ck.step(step, losses[step]), every="100 steps",
              keep=holdfast.Keep(1))
    assert saved(tmp_path / "told") == {2: {"loss": 1.0}}
    assert saved(tmp_path / "not told") == {2: {}}


def test_the_best_step_by_a_metric_of_save_is_kept(tmp_path):
    def tell(ck, step):
        ck.step(step)
        ck.save(step, metrics={"val_acc": SCORES[step]}).durable()

    train(tmp_path, 5, tell, every="never")
    assert saved(tmp_path) == {2: {"val_acc": 0.9}, 4: {"val_acc": 0.4}}


def test_a_number_goes_with_one_save_the_next_one(tmp_path):
    def tell(ck, step):
        ck.step(step, metrics={"val_acc": SCORES[step]} if step in (1, 3) else None)

    train(tmp_path, 5, tell, keep=None)
    assert saved(tmp_path) == {0: {}, 1: {"val_acc": 0.2}, 2: {}, 3: {"val_acc": 0.3}, 4: {}}
    train(tmp_path / "rare", 6, tell, keep=None, every="3 steps")
    assert saved(tmp_path / "rare")[2] == {"val_acc": 0.2}
    assert saved(tmp_path / "rare")[5] == {"val_acc": 0.3}


def test_a_step_that_has_just_been_saved_is_saved_again_with_its_metrics(tmp_path):
    def tell(ck, step):
        ck.step(step)
        if step == 2:
            ck.save(step, metrics={"val_acc": 0.5}).durable()

    train(tmp_path, 4, tell, keep=None)
    assert {"val_acc": 0.5} in saved(tmp_path).values()


def test_a_metric_that_is_not_a_number_is_never_the_best(tmp_path):
    scores = [math.nan, 0.5, math.nan, math.nan, 0.1]
    train(tmp_path, 5, lambda ck, step: ck.step(step, metrics={"val_acc": scores[step]}))
    assert sorted(saved(tmp_path)) == [1, 4]


def test_a_metric_that_nobody_reports_is_refused_at_the_third_save(tmp_path):
    seen = []

    def tell(ck, step):
        seen.append(step)
        ck.step(step, metrics={"val_loss": 1.0})

    with pytest.raises(ValueError, match='"val_acc", which nobody has reported by the third save'):
        train(tmp_path, 5, tell)
    assert seen == [0, 1, 2]


def test_none_says_that_a_number_will_come(tmp_path):
    scores = [None, None, None, 0.7, 0.6]
    train(tmp_path, 5, lambda ck, step: ck.step(step, metrics={"val_acc": scores[step]}))
    assert saved(tmp_path)[3] == {"val_acc": 0.7}


def test_a_resumed_run_knows_what_was_reported_before(tmp_path):
    train(tmp_path, 2, lambda ck, step: ck.step(step, metrics={"val_acc": SCORES[step]}))
    train(tmp_path, 5, lambda ck, step: ck.step(step), first=2)
    assert 1 in saved(tmp_path)


def test_what_is_no_number_is_refused_by_its_name(tmp_path):
    for wrong in ({"val_acc": "high"}, {"val_acc": torch.ones(2)}, {3: 1.0}, [0.5]):
        with pytest.raises(TypeError, match="metrics"):
            train(tmp_path / "run", 1, lambda ck, step, wrong=wrong: ck.step(step, metrics=wrong))


class Event:
    """A copy from a GPU that arrives when it is asked for a second time."""

    def __init__(self):
        self.asked = 0

    def query(self):
        self.asked += 1
        return self.asked > 1


def test_a_number_on_a_gpu_goes_with_the_save_after_it_has_arrived(tmp_path, monkeypatch):
    monkeypatch.setattr(reported, "is_on_gpu", lambda value: isinstance(value, torch.Tensor))
    monkeypatch.setattr(reported, "copy_from_gpu", lambda value: (value, Event()))

    def tell(ck, step):
        ck.step(step, metrics={"val_acc": torch.tensor(0.5)} if step == 1 else None)

    train(tmp_path, 4, tell, keep=None)
    assert saved(tmp_path) == {0: {}, 1: {}, 2: {"val_acc": 0.5}, 3: {}}


def by_ranks(rank, world, run, who):
    def tell(ck, step):
        ck.step(step, metrics={"val_acc": SCORES[step]} if rank in who else None)

    try:
        train(run, 5, tell, wrap=nn.parallel.DistributedDataParallel)
    except ValueError as error:
        return str(error)
    return sorted(saved(run))


def test_ranks_agree_on_what_was_reported(tmp_path):
    assert run_ranks(2, by_ranks, tmp_path / "told", [0]) == [[2, 4], [2, 4]]
    refused = run_ranks(2, by_ranks, tmp_path / "untold", [])
    assert refused[0] == refused[1] and "nobody has reported" in refused[0]
