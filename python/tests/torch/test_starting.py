"""Tests where a training begins: resume(initial=), resume(step=), load_into() and exclude=."""

import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from training import GPT

import holdfast

WRITING = holdfast.Writing(space_reserve=0)


def training(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def checkpointer(run, model, optimizer, **more):
    return holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1 steps", keep=None,
                                 writing=WRITING, verbose=more.pop("verbose", False), **more)


def steps(ck, model, optimizer, first, last, scale=1.0):
    for step in range(first, last):
        made = torch.Generator().manual_seed(step)
        (model(torch.randn(5, 4, generator=made)) * scale).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        ck.step(step)


def same(one, other):
    found, expected = one.state_dict(), other.state_dict()
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected)


# Other files in

FILES = {
    "state_dict": lambda sd, path: torch.save(sd, path / "m.pt"),
    "nested": lambda sd, path: torch.save({"model": sd, "ema": {k: v * 0 for k, v in sd.items()},
                                           "epoch": 3}, path / "m.pt"),
    "lightning": lambda sd, path: torch.save(
        {"state_dict": {f"net.{k}": v for k, v in sd.items()}, "hyper_parameters": {"lr": 1}},
        path / "m.ckpt"),
    "ddp": lambda sd, path: torch.save({f"module.{k}": v for k, v in sd.items()}, path / "m.pth"),
    "compiled": lambda sd, path: torch.save({f"_orig_mod.{k}": v for k, v in sd.items()},
                                            path / "m.pt"),
    "safetensors": lambda sd, path: holdfast.save(sd, path / "m.safetensors"),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_of_others_are_loaded_into_a_model(tmp_path, kind):
    model, _ = training(1)
    FILES[kind](model.state_dict(), tmp_path)
    fresh, _ = training(2)
    path = next(tmp_path.iterdir())
    assert holdfast.load_into(fresh, path) == ([], [])
    assert same(fresh, model)


def test_a_run_begins_with_weights_only_once(tmp_path, capfd):
    model, _ = training(1)
    torch.save(model.state_dict(), tmp_path / "m.pt")
    run = tmp_path / "run"
    for start in (0, 3):
        fresh, optimizer = training(2)
        with checkpointer(run, fresh, optimizer, verbose=True) as ck:
            assert ck.resume(initial=tmp_path / "m.pt") == start
            if start == 0:
                assert same(fresh, model)
                steps(ck, fresh, optimizer, 0, 3)
                trained = fresh
            else:
                assert same(fresh, trained)
    told = capfd.readouterr().err
    assert f"begins with the weights of {tmp_path}/m.pt" in told
    assert f"the run began with {tmp_path}/m.pt" in told


def test_another_initial_file_is_not_used_silently(tmp_path, caplog):
    model, _ = training(1)
    torch.save(model.state_dict(), tmp_path / "m.pt")
    fresh, optimizer = training(2)
    with checkpointer(tmp_path / "run", fresh, optimizer) as ck:
        ck.resume(initial=tmp_path / "m.pt")
        steps(ck, fresh, optimizer, 0, 2)
    with checkpointer(tmp_path / "run", *training(3)) as ck:
        assert ck.resume(initial=tmp_path / "other.pt") == 2
    assert "expected another folder to begin with" in caplog.text


def test_a_run_begins_with_the_weights_of_another_run(tmp_path):
    model, optimizer = training(1)
    with checkpointer(tmp_path / "old", model, optimizer) as ck:
        steps(ck, model, optimizer, 0, 2)
    fresh, other = training(2)
    with checkpointer(tmp_path / "new", fresh, other) as ck:
        assert ck.resume(initial=tmp_path / "old") == 0
        assert same(fresh, model) and not other.state


def test_wrong_files_are_refused_before_anything_changes(tmp_path):
    model, _ = training(1)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    torch.save({**model.state_dict(), "2.bias": torch.zeros(3)}, tmp_path / "shape.pt")
    torch.save({k: v for k, v in before.items() if k != "2.bias"}, tmp_path / "less.pt")
    torch.save({**before, "3.bias": torch.zeros(1)}, tmp_path / "more.pt")
    torch.save({"x": torch.zeros(1)}, tmp_path / "other.pt")
    for name, words in [("shape", r"different: 2.bias is \[3\]; expected \[2\]"),
                        ("less", "not in it: 2.bias"), ("more", "not expected: 3.bias")]:
        with pytest.raises(ValueError, match=words):
            holdfast.load_into(model, tmp_path / f"{name}.pt")
    with pytest.raises(ValueError, match="none of the model's tensors"):
        holdfast.load_into(model, tmp_path / "other.pt", strict=False)
    with pytest.raises(holdfast.NotFoundError):
        holdfast.load_into(model, tmp_path / "absent.pt")
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())
    assert holdfast.load_into(model, tmp_path / "less.pt", strict=False).missing == ["2.bias"]
    assert holdfast.load_into(model, tmp_path / "more.pt", strict=False).unexpected == ["3.bias"]


def test_a_bfloat16_file_becomes_the_models_dtype(tmp_path):
    model, _ = training(1)
    torch.save(model.bfloat16().state_dict(), tmp_path / "m.pt")
    fresh, _ = training(2)
    holdfast.load_into(fresh, tmp_path / "m.pt")
    assert fresh[0].weight.dtype == torch.float32
    assert torch.equal(fresh[0].weight, model[0].weight.float())


def load_on_ranks(rank, world, path, kind):
    torch.manual_seed(rank)
    model = GPT()
    wrapped = DistributedDataParallel(model) if kind == "ddp" else fully_shard(model)
    holdfast.load_into(wrapped, path)
    with holdfast.Checkpointer(path.parent / "run", model=wrapped, every="never",
                               writing=WRITING) as ck:
        assert ck.resume(initial=path) == 0
    try:
        holdfast.load_into(wrapped, path.parent / (f"absent-{rank}.pt" if rank else path.name))
    except (ValueError, holdfast.NotFoundError) as error:
        refused = str(error)
    return refused, {name: (one.full_tensor() if hasattr(one, "full_tensor") else one).clone()
                     for name, one in model.state_dict().items()}


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_each_rank_reads_what_it_holds(tmp_path, kind):
    torch.manual_seed(9)
    expected = GPT().state_dict()
    torch.save(expected, tmp_path / "m.pt")
    for refused, found in run_ranks(2, load_on_ranks, tmp_path / "m.pt", kind):
        assert "absent-1.pt" in refused  # a file that one rank lacks is refused on all
        assert all(torch.equal(found[name], one) for name, one in expected.items())


# Back to a step

def test_resume_step_goes_back_once(tmp_path, capfd):
    run = tmp_path / "run"
    model, optimizer = training(1)
    with checkpointer(run, model, optimizer) as ck:
        steps(ck, model, optimizer, 0, 6)
    model, optimizer = training(2)
    with checkpointer(run, model, optimizer, verbose=True) as ck:
        assert ck.resume(step=2) == 3
        steps(ck, model, optimizer, 3, 5, scale=2.0)  # another branch, up to step 4
    branch = model
    for _ in range(2):  # started again, as a scheduler does
        model, optimizer = training(3)
        with checkpointer(run, model, optimizer, verbose=True) as ck:
            assert ck.resume(step=2) == 5 and same(model, branch)
    told = capfd.readouterr().err
    assert "resumed after step 2, as asked" in told
    assert "resumed after step 4, which descends from step 2" in told
    model, optimizer = training(4)
    with checkpointer(run, model, optimizer) as ck:  # a script without step= takes the newest
        assert ck.resume() == 5 and same(model, branch)


def test_a_step_before_which_a_process_died_can_be_gone_back_to(tmp_path):
    run = tmp_path / "run"
    for first, last in ((0, 3), (3, 6)):  # the second process resumed after step 2 by itself
        model, optimizer = training(1)
        with checkpointer(run, model, optimizer) as ck:
            ck.resume()
            steps(ck, model, optimizer, first, last)
    with checkpointer(run, *training(2)) as ck:
        assert ck.resume(step=2) == 3


def test_a_resumed_run_saves_the_objects_of_one_that_never_stopped(tmp_path):
    for name, lives in {"whole": [(0, 4)], "resumed": [(0, 2), (2, 4)]}.items():
        for first, last in lives:
            model, optimizer = training()
            with checkpointer(tmp_path / name, model, optimizer) as ck:
                assert ck.resume() == first
                steps(ck, model, optimizer, first, last)
    whole, resumed = (holdfast.open(tmp_path / name).objects for name in ("whole", "resumed"))
    assert whole == resumed


def test_a_branch_of_a_branch(tmp_path):
    run = tmp_path / "run"
    model, optimizer = training(1)
    with checkpointer(run, model, optimizer) as ck:
        steps(ck, model, optimizer, 0, 6)
    for back, expected in ((4, 5), (1, 2), (4, 5)):
        model, optimizer = training(2)
        with checkpointer(run, model, optimizer) as ck:
            assert ck.resume(step=back) == expected
            steps(ck, model, optimizer, expected, 6, scale=1.5)


def test_a_step_that_is_not_there_is_an_error(tmp_path):
    model, optimizer = training(1)
    with checkpointer(tmp_path / "run", model, optimizer) as ck:
        with pytest.raises(holdfast.NotFoundError):
            ck.resume(step=7)
        ck.resume()
        steps(ck, model, optimizer, 0, 2)
    with checkpointer(tmp_path / "run", *training(1)) as ck:
        with pytest.raises(holdfast.NotFoundError, match="7"):
            ck.resume(step=7)
        with pytest.raises(ValueError, match="expected one of them"):
            ck.resume(step=1, initial="m.pt")


# Without some tensors

def test_excluded_tensors_are_not_saved_and_stay_as_they_are(tmp_path):
    for exclude in ("0.*", ["0.weight", "0.bias"], lambda name, tensor: name.startswith("0.")):
        run = tmp_path / str(len(list(tmp_path.iterdir())))
        model, _ = training(1)
        optimizer = torch.optim.AdamW(model[2].parameters(), lr=0.1)
        with checkpointer(run, model, optimizer, exclude=exclude) as ck:
            steps(ck, model, optimizer, 0, 2)
        assert not any(name.startswith("model.0.") for name in holdfast.open(run))
        fresh, _ = training(2)
        base = fresh[0].weight.clone()
        optimizer = torch.optim.AdamW(fresh[2].parameters(), lr=0.1)
        with checkpointer(run, fresh, optimizer, exclude=exclude) as ck:
            assert ck.resume() == 2 and ck.report.exact
        assert torch.equal(fresh[0].weight, base)
        assert torch.equal(fresh[2].weight, model[2].weight)


def test_a_run_that_has_them_is_resumed_without_them(tmp_path):
    model, _ = training(1)
    optimizer = torch.optim.AdamW(model[2].parameters(), lr=0.1)
    with checkpointer(tmp_path / "run", model, optimizer) as ck:
        steps(ck, model, optimizer, 0, 2)
    fresh, _ = training(2)
    optimizer = torch.optim.AdamW(fresh[2].parameters(), lr=0.1)
    with checkpointer(tmp_path / "run", fresh, optimizer, exclude="0.*") as ck:
        assert ck.resume() == 2


def test_an_optimizer_of_an_excluded_parameter_is_refused(tmp_path):
    with pytest.raises(ValueError, match="model.0.weight: exclude= leaves it out"):
        checkpointer(tmp_path / "run", *training(1), exclude="0.*")
    with pytest.raises(TypeError, match="expected patterns of names"):
        checkpointer(tmp_path / "run", *training(1), exclude=[3])
