"""The moments at which the parts of a save happen,
and what happens if such a moment never comes."""

import time

from grouped import grouped
import pytest
import torch
from ranks import run_ranks
from torch import nn

import holdfast
from holdfast import _native


def training(run, **options):
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ck = holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1000 steps",
                               **grouped(signals=False, space_reserve=0, **options))
    return model, optimizer, ck


def update(model, optimizer):
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def steps(run):
    return [int(path.name.split("-")[1]) for path in sorted(run.glob("step-*"))]


def test_a_value_that_cannot_be_stored_is_named_and_its_save_dropped(tmp_path):
    model, optimizer, ck = training(tmp_path / "run")
    ck.resume()
    update(model, optimizer)
    ck.save(1).durable()
    optimizer.param_groups[0]["odd"] = object()
    with pytest.raises(TypeError, match="odd: a builtins.object"):
        ck.save(2)
    update(model, optimizer)
    del optimizer.param_groups[0]["odd"]
    ck.save(3).durable()
    ck.close()
    assert steps(tmp_path / "run") == [1, 3]


def one_of_several(rank, world, folder):
    model, optimizer, ck = training(f"{folder}/run")
    ck.resume()
    update(model, optimizer)
    ck.save(1).durable()
    if rank == 1:
        optimizer.param_groups[0]["odd"] = object()
        with pytest.raises(TypeError, match="odd"):
            ck.save(2)
    else:
        with pytest.raises(holdfast.UnavailableError, match="odd"):
            ck.save(2).durable()
    optimizer.param_groups[0].pop("odd", None)
    ck.save(3).durable()
    ck.close()


def test_the_other_ranks_hear_of_it_at_once(tmp_path):
    run_ranks(3, one_of_several, str(tmp_path))
    assert steps(tmp_path / "run") == [1, 3]


class Spy:
    """Passes calls on, and records with how many pieces each was made."""

    def __init__(self, job):
        self.job, self.seen = job, []

    def __getattr__(self, name):
        def call(*args, **more):
            self.seen += [(name, len(arg)) for arg in args if isinstance(arg, _native.Pieces)]
            return getattr(self.job, name)(*args, **more)

        return call


class SlowSpy(Spy):
    """Is slow to attach."""

    SECONDS = 0.2

    def attach(self, *args):
        time.sleep(self.SECONDS)
        return self.job.attach(*args)


def test_the_first_step_attaches_what_the_first_save_has(tmp_path):
    """The first update makes the slots. They are attached in that step, not in the first save."""
    model, optimizer, ck = training(tmp_path / "run")
    ck.resume()
    ck._saves.job = spy = Spy(ck._saves.job)
    update(model, optimizer)
    ck.step(0)
    update(model, optimizer)
    ck.step(1)
    ck.save(1).durable()
    assert spy.seen == [("attach", 4), ("save", 4)]
    ck.close()


def test_the_first_look_counts_as_stall(tmp_path):
    """With many tensors, the first look at them takes longer than any later one."""
    model, optimizer, ck = training(tmp_path / "run")
    ck.resume()
    ck._saves.job = SlowSpy(ck._saves.job)
    update(model, optimizer)
    before = ck.stall
    ck.step(0)
    assert ck.stall - before >= SlowSpy.SECONDS
    ck.close()


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
def test_the_copying_is_hidden_behind_a_closure_too(tmp_path, kind, by_name):
    """The closure's forward and backward run while the save is copied. The old values are saved."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    optimizer = kind(model.parameters(), lr=0.1)
    ck = holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer,
                               every="1000 steps", writing=holdfast.Writing(space_reserve=0),
                               failures=holdfast.Failures(signals=False))
    ck.resume()
    seen = []

    def closure():
        seen.append(ck._saves.is_unsettled)
        optimizer.zero_grad()
        loss = (model(torch.ones(1, 64)) ** 2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    handle = ck.save(1)
    seen.clear()
    optimizer.step(closure=closure) if by_name else optimizer.step(closure)
    assert seen[0] and not any(seen[1:])
    assert not torch.equal(before["weight"], model.weight)
    handle.durable()
    ck.close()
    saved = holdfast.load(tmp_path / "run")
    assert all(torch.equal(saved[f"model.{name}"], before[name]) for name in before)


class Early(torch.optim.SGD):
    """A user's optimizer, which changes parameters before it calls the closure."""

    def step(self, closure):
        with torch.no_grad():
            self.param_groups[0]["params"][0].mul_(0.5)
        return super().step(closure)


def test_an_optimizer_of_others_finds_all_settled(tmp_path):
    model = nn.Linear(64, 64)
    optimizer = Early(model.parameters(), lr=0.1)
    ck = holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer,
                               every="1000 steps",
                               writing=holdfast.Writing(guard="off", space_reserve=0),
                               failures=holdfast.Failures(signals=False))
    ck.resume()
    before = model.weight.detach().clone()
    ck.save(1)
    optimizer.step(lambda: None)
    ck.close()
    assert torch.equal(holdfast.load(tmp_path / "run")["model.weight"], before)


def wait_for(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.02)
    raise TimeoutError("it never came")


def test_a_save_is_durable_without_another_update(tmp_path):
    """A validation before the next update may take an hour, and may crash."""
    model, optimizer, ck = training(tmp_path / "run")
    ck.resume()
    update(model, optimizer)
    handle = ck.save(1)
    wait_for(lambda: handle.is_done)
    assert steps(tmp_path / "run") == [1]
    update(model, optimizer)
    ck.close()


def test_nor_is_it_without_an_update_if_it_was_torn(tmp_path):
    model, optimizer, ck = training(tmp_path / "run")
    ck.resume()
    update(model, optimizer)
    handle = ck.save(1)
    with torch.no_grad():
        model.weight.mul_(2)
    wait_for(lambda: handle.is_done)
    with pytest.raises(holdfast.UnavailableError, match="weight"):
        handle.durable()
    assert steps(tmp_path / "run") == []
    ck.save(2).durable()
    ck.close()
    assert torch.equal(holdfast.load(tmp_path / "run")["model.weight"], model.weight)
