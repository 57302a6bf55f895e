"""What a save does when: what is left to other moments, and what becomes of one without it."""

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
                               signals=False, space_reserve=0, **options)
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


def test_a_save_that_never_gets_any_does_not_keep_the_next_waiting(tmp_path):
    model, optimizer, ck = training(tmp_path / "run")
    ck.resume()
    update(model, optimizer)
    handle = ck._job.save(1, ck._contents.held(), None, {}, "")
    ck._job.settle([])
    with pytest.raises(holdfast.UnavailableError, match="never given"):
        handle.durable()
    ck.save(2).durable()
    ck.close()


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
    """Passes calls on, and keeps with how many pieces each was made."""

    def __init__(self, job):
        self.job, self.seen = job, []

    def __getattr__(self, name):
        def call(*args, **more):
            self.seen += [(name, len(arg)) for arg in args if isinstance(arg, _native.Pieces)]
            return getattr(self.job, name)(*args, **more)

        return call


def test_the_first_step_attaches_what_the_first_save_has(tmp_path):
    """Slots come with the first update: what they need is not left to the first save."""
    model, optimizer, ck = training(tmp_path / "run")
    ck.resume()
    ck._job = spy = Spy(ck._job)
    update(model, optimizer)
    ck.step(0)
    update(model, optimizer)
    ck.step(1)
    ck.save(1).durable()
    assert spy.seen == [("attach", 4), ("save", 4)]
    ck.close()
