"""Flips of live tensors by a plan: exactly the named elements, past torch's version counter."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from ranks import run_ranks
from torch import nn

import holdfast

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4))


def trained(model, optimizer, steps=2):
    for step in range(steps):
        torch.manual_seed(step)
        model(torch.randn(5, 2, 4, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def bits(model, optimizer=None):
    """The bytes of all tensors."""
    found = {name: t.detach().clone().flatten().view(torch.uint8).numpy().tobytes()
             for name, t in model.state_dict().items()}
    for number, state in enumerate(optimizer.state.values() if optimizer else ()):
        for slot, t in state.items():
            found[f"{number}.{slot}"] = t.clone().flatten().view(torch.uint8).numpy().tobytes()
    return found


def flipped(before, after):
    """How many bits differ."""
    return sum((int.from_bytes(a, "little") ^ int.from_bytes(after[name], "little")).bit_count()
               for name, a in before.items())


def test_exactly_the_planned_bits_flip_and_undo_puts_them_back():
    model = net().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters())
    trained(model, optimizer)
    before = bits(model, optimizer)
    versions = [p._version for p in model.parameters()]
    plan = holdfast.flip_plan(model, optimizer=optimizer, flips=100, seed=3)
    assert bits(model, optimizer) == before
    done = holdfast.inject(model, plan, optimizer=optimizer)
    assert flipped(before, bits(model, optimizer)) == 100
    assert [p._version for p in model.parameters()] == versions
    with pytest.raises(holdfast.ConflictError, match="has the bits .*; expected"):
        holdfast.inject(model, plan, optimizer=optimizer)
    assert flipped(before, bits(model, optimizer)) == 100
    done.undo()
    assert bits(model, optimizer) == before


def test_a_plan_is_the_same_for_live_tensors_and_for_their_checkpoint(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trained(model, optimizer)
    with holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer,
                               every="never", writing=holdfast.Writing(space_reserve=0)) as ck:
        ck.save(0).durable()
        live = holdfast.flip_plan(ck, tensors=["model.*", "optimizer.*"], flips=20, seed=9)
    file = tmp_path / "plan.json"
    done = subprocess.run([PROGRAM, "inject", tmp_path / "run@0", "--dry-run", "--tensors",
                           "model.*", "optimizer.*", "--flips", "20", "--seed", "9",
                           "--save-plan", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(file.read_text())["flips"] == live["flips"]
    before = bits(model, optimizer)
    struck = holdfast.inject(model, file, optimizer=optimizer)
    assert flipped(before, bits(model, optimizer)) == 20
    assert str(struck).splitlines()[0] in done.stdout


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16,
                                   torch.float8_e4m3fn, torch.complex64, torch.complex128,
                                   torch.int64, torch.uint8, torch.bool])
def test_every_dtype(dtype):
    model = nn.Module()
    model.register_buffer("t", torch.ones(3, 4).to(dtype))
    model.register_buffer("scalar", torch.ones(()).to(dtype))
    before = bits(model)
    plan = holdfast.flip_plan(model, flips=13)
    done = holdfast.inject(model, plan)
    assert flipped(before, bits(model)) == 13
    done.undo()
    assert bits(model) == before


def test_what_does_not_fit_is_refused_before_anything_changes(tmp_path):
    model, before = net(), bits(net())
    plan = holdfast.flip_plan(model, tensors=["model.3"], flips=2)

    def refused(error, match, change, **options):
        altered = json.loads(json.dumps(plan))
        change(altered)
        with pytest.raises(error, match=match):
            holdfast.inject(model, altered, **options)
        assert bits(model) == before

    refused(ValueError, "twice; expected each element once",
            lambda p: p["flips"].append(p["flips"][0]))
    with pytest.raises(ValueError, match="rate and flips: both are given"):
        holdfast.flip_plan(model, rate=0.5, flips=3)
    refused(holdfast.NotFoundError, '^tensor "model.9.weight": no such tensor; expected',
            lambda p: p["flips"][1].update(tensor="model.9.weight"))
    refused(holdfast.NotFoundError, "no such tensor",
            lambda p: p["flips"][1].update(tensor="model.9.weight"), at_step=3)
    refused(holdfast.ConflictError, "has the shape .*; expected an element 10000",
            lambda p: p["flips"][1].update(element=10000))
    refused(holdfast.ConflictError, "is torch.float32; expected I32",
            lambda p: p["flips"][1].update(dtype="I32"))
    refused(ValueError, "expected a \"flip plan\"", lambda p: p.update(holdfast="x"))
    refused(ValueError, "the mask is not before XOR after",
            lambda p: p["flips"][0].update(mask="00000000"))
    refused(ValueError, "at_step=-1; expected a whole number", lambda p: None, at_step=-1)
    with pytest.raises(FileNotFoundError):
        holdfast.inject(model, tmp_path / "none.json")
    with pytest.raises(holdfast.NotFoundError, match="conv7"):
        holdfast.flip_plan(model, tensors=["conv7"])
    with pytest.raises(TypeError, match="^tensors='model'; expected a list of texts$"):
        holdfast.flip_plan(model, tensors="model")
    assert bits(model) == before


def test_at_step_waits_for_that_update():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    other = nn.Linear(1, 1)
    unrelated = torch.optim.SGD(other.parameters(), lr=0.0)
    plan = holdfast.flip_plan(model, tensors=["model.0.weight"], bits="top-exponent")
    armed = holdfast.inject(model, plan, at_step=2)
    for step in range(4):
        unrelated.step()
        optimizer.step()
        assert armed.is_done == (step >= 2)


def test_at_step_of_a_checkpointer(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    plan = holdfast.flip_plan(model, tensors=["model.0.weight"])
    with holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer,
                               every="never") as ck:
        armed = holdfast.inject(ck, plan, at_step=1)
        for step in range(3):
            optimizer.step()
            assert armed.is_done == (step > 1)
            ck.step(step)


def strike_sharded(rank, world, plan):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    model = nn.Module()
    whole = torch.arange(24.0).reshape(6, 4)
    model.w = nn.Parameter(distribute_tensor(whole, init_device_mesh("cpu", (world,)), [Shard(0)]))
    holdfast.inject(model, plan)
    with pytest.raises(NotImplementedError, match="expected the whole tensor"):
        holdfast.flip_plan(model)
    return model.w.full_tensor().detach().clone().numpy()


def test_each_rank_flips_what_it_holds():
    model = nn.Module()
    model.w = nn.Parameter(torch.arange(24.0).reshape(6, 4))
    plan = holdfast.flip_plan(model, flips=30)
    holdfast.inject(model, plan)
    for sharded in run_ranks(2, strike_sharded, plan):
        assert sharded.tobytes() == model.w.detach().numpy().tobytes()
