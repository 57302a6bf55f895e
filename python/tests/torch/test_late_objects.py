"""Objects are gathered while tensors are copied: what becomes of a save that gets none."""

import pytest
import torch
from ranks import run_ranks
from torch import nn

import holdfast


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
