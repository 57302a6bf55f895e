"""If tensors are replaced after the Checkpointer was made, the new tensors are saved."""

import copy
import gc
import logging
import weakref
from collections import defaultdict

import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import holdfast
from holdfast.arrays import describe_one
from holdfast.torch.state import capture
from holdfast.torch.state.stateful import Stateful
from holdfast.torch.state.tensor_state import TensorState


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4, bias=False)
        self.register_buffer("late", None)
        self.more = nn.ModuleDict()

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def update(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).square().sum().backward()
    optimizer.step()


def lives(model, optimizer):
    """All tensors by name, found without TensorState."""
    found = {f"model.{name}": tensor for name, tensor in model.named_parameters()}
    found |= {f"model.{name}": tensor for name, tensor in model.named_buffers()}
    for name, parameter in model.named_parameters():
        for slot, value in optimizer.state.get(parameter, {}).items():
            found[f"optimizer.{name}.{slot}"] = value
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def same_bits(a, b):
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)


def saved(run, like):
    """Restores the newest step, which must have exactly these names, shapes and dtypes."""
    into = {name: torch.full_like(t, 77).contiguous() for name, t in like.items()}
    assert holdfast.restore(run, into).unused == []
    return into


def loaded(model, optimizer):
    state = copy.deepcopy(optimizer.state_dict())
    for slots in state["state"].values():
        slots["exp_avg"].fill_(7.0)
    optimizer.load_state_dict(state)


def loaded_and_trained(model, optimizer):
    loaded(model, optimizer)
    update(model, optimizer)


def one_state_by_hand(model, optimizer):
    old = optimizer.state[model.a.weight]
    optimizer.state[model.a.weight] = {key: value + 1 for key, value in old.items()}


def all_state_by_hand(model, optimizer):
    made = defaultdict(dict)
    for parameter, slots in optimizer.state.items():
        made[parameter] = {key: value + 1 for key, value in slots.items()}
    optimizer.state = made


def checkpoints(run, model, optimizer):
    return holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1000 steps",
                                 writing=holdfast.Writing(space_reserve=0),
                                 failures=holdfast.Failures(signals=False))


def state_begun_anew(model, optimizer):
    optimizer.state.clear()
    update(model, optimizer)


def one_slot(model, optimizer):
    optimizer.state[model.b.weight]["exp_avg"] = torch.full((4, 4), 5.0)


def one_slot_more(model, optimizer):
    optimizer.state[model.b.weight]["more"] = torch.full((4, 4), 5.0)


def one_slot_gone(model, optimizer):
    del optimizer.state[model.b.weight]["exp_avg"]


def memory_of_a_slot(model, optimizer):
    optimizer.state[model.b.weight]["exp_avg"].data = torch.full((4, 4), 5.0)


def other_dtype(model, optimizer):
    model.double()


def late_buffer(model, optimizer):
    model.late = torch.full((3,), 5.0)


def new_buffer(model, optimizer):
    model.a.register_buffer("new", torch.full((3,), 5.0))


def buffer_and_gone_again(model, optimizer):
    model.late = torch.ones(3)
    model.late = None


def new_parameter(model, optimizer):
    model.a.new = nn.Parameter(torch.full((3,), 5.0))


def new_module(model, optimizer):
    model.more["head"] = nn.Linear(4, 2)
    optimizer.add_param_group({"params": list(model.more.parameters())})
    model.more["head"](torch.ones(1, 4)).sum().backward()
    update(model, optimizer)


def module_gone(model, optimizer):
    del model.more["old"]


def reassigned_buffer(model, optimizer):
    model.more["old"].running_mean = model.more["old"].running_mean + 1


def buffer_of_another_shape(model, optimizer):
    model.more["old"].running_mean = torch.ones(5, dtype=torch.float64)


def buffers_swapped(model, optimizer):
    old = model.more["old"]
    old.running_mean, old.running_var = old.running_var, old.running_mean


def buffers_tied(model, optimizer):
    model.more["old"].running_mean = model.more["old"].running_var = torch.full((3,), 5.0)


def buffer_that_changes_modules(model, optimizer):
    model.a.register_buffer("new", model.more["old"].running_var)
    del model.more["old"].running_var


def memory_of_a_parameter(model, optimizer):
    model.b.weight.data = torch.full((4, 4), 5.0)


def all_slots_and_a_buffer(model, optimizer):
    reassigned_buffer(model, optimizer)
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"] + 1


CHANGES = [reassigned_buffer, buffer_of_another_shape, buffers_swapped,
           buffer_that_changes_modules, memory_of_a_parameter, all_slots_and_a_buffer,
           loaded, loaded_and_trained, one_state_by_hand, all_state_by_hand, state_begun_anew,
           one_slot, one_slot_more, one_slot_gone, memory_of_a_slot, other_dtype,
           late_buffer, new_buffer, buffer_and_gone_again, new_parameter,
           new_module, module_gone]


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_replaced_is_saved_as_it_lives(change, tmp_path):
    torch.manual_seed(1)
    model = Net()
    model.more["old"] = nn.BatchNorm1d(3, affine=False)
    optimizer = torch.optim.AdamW(model.parameters())
    with checkpoints(tmp_path, model, optimizer) as ck:
        ck.resume()
        update(model, optimizer)
        ck.save(1).durable()
        like = lives(model, optimizer)
        assert same_bits(saved(tmp_path, like), like)
        change(model, optimizer)
        for step in (2, 3):
            ck.save(step).durable()
            like = lives(model, optimizer)
            assert same_bits(saved(tmp_path, like), like)


@pytest.mark.parametrize("change, names", [
    (reassigned_buffer, ["model.more.old.running_mean"]),
    (one_slot, ["optimizer.b.weight.exp_avg"]),
    (memory_of_a_slot, ["optimizer.b.weight.exp_avg"]),
    (memory_of_a_parameter, ["model.b.weight"]),
])
def test_a_tensor_in_place_of_another_costs_no_look_at_the_rest(
    change, names, tmp_path, monkeypatch
):
    model = Net()
    model.more["old"] = nn.BatchNorm1d(3, affine=False)
    optimizer = torch.optim.AdamW(model.parameters())
    with checkpoints(tmp_path, model, optimizer) as ck:
        ck.resume()
        update(model, optimizer)
        ck.save(0).durable()
        described = []
        monkeypatch.setattr(capture, "describe_one", lambda name, *rest: (
            described.append(name), describe_one(name, *rest))[1])
        before = ck._state._tensors.pieces()
        for step in (1, 2):
            change(model, optimizer)
            ck.save(step).durable()
            now = ck._state._tensors.pieces()
            assert [one.name for k, one in enumerate(now) if one is not before[k]] == names
            before = now
        # No tensor is described anew: buffers are copied before, and for the others only the
        # address changes.
        assert described == []
        like = lives(model, optimizer)
        assert same_bits(saved(tmp_path, like), like)


def test_a_buffer_that_is_assigned_in_every_step_is_saved_as_it_was_in_each(tmp_path):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    model.late = torch.zeros(3)
    wanted = {}
    with checkpoints(tmp_path, model, optimizer) as ck:
        ck.resume()
        for step in range(9):
            update(model, optimizer)
            model.late = model.late + 1 if step % 4 != 3 else torch.ones(2 + step).double()
            wanted[step] = model.late.clone()
            ck.save(step)
            if step % 2:
                model.late += 100  # an in-place change after the save
    for step, value in wanted.items():
        into = {"model.late": torch.zeros_like(value)}
        holdfast.restore(f"{tmp_path}", into, step=step)
        assert torch.equal(into["model.late"], value)


def test_buffers_that_become_one_are_saved_as_one(tmp_path):
    model = Net()
    model.more["old"] = nn.BatchNorm1d(3, affine=False)
    state = TensorState(model)
    state.pieces()
    buffers_tied(model, None)
    pieces = {piece.name: piece for piece in state.pieces()}
    assert pieces["model.more.old.running_mean"].aliases == ("model.more.old.running_var",)
    reassigned_buffer(model, None)
    pieces = {piece.name: piece for piece in state.pieces()}
    assert pieces["model.more.old.running_mean"].tensor.tolist() == [6, 6, 6]
    assert pieces["model.more.old.running_var"].tensor.tolist() == [5, 5, 5]


def test_moments_that_are_loaded_before_the_first_update_are_saved(tmp_path):
    model = Net()
    warm = torch.optim.AdamW(model.parameters())
    update(model, warm)
    optimizer = torch.optim.AdamW(model.parameters())
    with holdfast.Checkpointer(tmp_path, model=model, optimizer=optimizer, every="1 steps",
                               writing=holdfast.Writing(space_reserve=0),
                               failures=holdfast.Failures(signals=False)) as ck:
        assert ck.resume() == 0
        optimizer.load_state_dict(warm.state_dict())
        update(model, optimizer)
        ck.step(0)
        update(model, optimizer)
        ck.save(1).durable()
    like = lives(model, optimizer)
    assert "optimizer.a.weight.exp_avg" in like and same_bits(saved(tmp_path, like), like)


def test_moments_that_were_replaced_are_let_go_of_at_once(tmp_path):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    with checkpoints(tmp_path, model, optimizer) as ck:
        ck.resume()
        update(model, optimizer)
        ck.save(1).durable()
        old = [weakref.ref(slots["exp_avg"]) for slots in optimizer.state.values()]
        memory = weakref.ref(optimizer.state[model.a.weight]["exp_avg"].untyped_storage())
        loaded(model, optimizer)
        gc.collect()
        assert [ref() for ref in old] == [None] * 3 and memory() is None


def test_a_replaced_parameter_is_refused_again_and_again():
    model = Net()
    state = TensorState(model)
    state.pieces()
    model.load_state_dict(model.state_dict(), assign=True)
    for _ in range(2):
        with pytest.raises(ValueError, match="model.a.weight: replaced by another parameter"):
            state.pieces()
    model.a = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="model.a.weight: replaced by another parameter"):
        state.pieces()


def test_a_parameter_that_left_the_model_and_not_the_optimizer_is_refused():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    update(model, optimizer)
    state = TensorState(model, optimizer)
    state.pieces()
    model.a.bias = None
    with pytest.raises(ValueError, match="that the model does not have"):
        state.pieces()


def test_groups_are_of_the_parameters_that_are_in_them_now():
    model = Net()
    optimizer = torch.optim.SGD([{"params": [model.a.weight]}, {"params": [model.b.weight]}], lr=1)
    state = TensorState(model, optimizer)
    state.objects()
    one, two = (group["params"] for group in optimizer.param_groups)
    one[0], two[0] = two[0], one[0]
    assert [group["params"] for group in state.objects()["groups"]] == [
        ["optimizer.b.weight"], ["optimizer.a.weight"]]


@pytest.mark.parametrize("change", ["requires_grad", "autocast"])
def test_what_changes_no_tensor_costs_no_new_walk(change):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    update(model, optimizer)
    state = TensorState(model, optimizer)
    pieces = state.pieces()
    assert state.pieces() is pieces
    if change == "requires_grad":
        model.a.weight.requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16, enabled=change == "autocast"):
        assert state.pieces() is pieces
    update(model, optimizer)
    assert state.pieces() is pieces


def test_an_object_keeps_only_tensors_that_it_still_has():
    class Thing:
        def __init__(self):
            self.tensors = {"old": torch.ones(3)}

        def state_dict(self):
            return dict(self.tensors)

        def load_state_dict(self, state):
            pass

    thing = Thing()
    holder = Stateful("thing", thing)
    _, (piece,) = holder.capture()
    assert holder.capture()[1] == [piece]
    old = weakref.ref(thing.tensors.pop("old"))
    thing.tensors["new"] = torch.ones(3)
    del piece
    holder.capture()
    gc.collect()
    assert old() is None


def test_an_optimizer_that_was_not_given_is_spoken_of(tmp_path, caplog):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    with holdfast.Checkpointer(tmp_path, model=model, optimizer=optimizer, every="1 steps",
                               writing=holdfast.Writing(space_reserve=0),
                               failures=holdfast.Failures(signals=False)) as ck:
        ck.resume()
        other, apart = torch.optim.AdamW(model.parameters()), Net()
        with caplog.at_level(logging.WARNING, "holdfast"):
            update(apart, torch.optim.AdamW(apart.parameters()))
            ck.step(0)
            assert not caplog.messages
            for step in (1, 2):
                update(model, other)
                ck.step(step)
        assert len(caplog.messages) == 1 and "was not given" in caplog.text


class Wrapper(torch.optim.Optimizer):
    """A wrapper like that of some trainers, which does not call
    torch.optim.Optimizer.__init__()."""

    def __init__(self, optimizer):
        self.inside = optimizer

    state = property(lambda self: self.inside.state)
    param_groups = property(lambda self: self.inside.param_groups)

    def step(self, closure=None):
        self.inside.step(closure)


def test_an_optimizer_inside_another_is_followed(tmp_path):
    model = Net()
    inside = torch.optim.AdamW(model.parameters())
    with holdfast.Checkpointer(tmp_path, model=model, optimizer=Wrapper(inside), every="1000 steps",
                               writing=holdfast.Writing(space_reserve=0),
                               failures=holdfast.Failures(signals=False)) as ck:
        ck.resume()
        update(model, inside)
        ck.save(1).durable()
        loaded(model, inside)
        ck.save(2).durable()
    like = lives(model, inside)
    assert same_bits(saved(tmp_path, like), like)


# Real ranks


def values(state):
    return {piece.name: piece.tensor for piece in state.pieces()}


def check_sharded(rank, world):
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = Net()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    update(model, optimizer)
    state = TensorState(model, optimizer)
    first = state.pieces()

    sharded = model.a.weight
    with torch.no_grad():
        model(torch.ones(1, 4))
    # The parameter is gathered now.
    assert model.a.weight is not sharded and state.pieces() is first
    model.reshard()
    assert model.a.weight is sharded and state.pieces() is first

    def local(name):
        return optimizer.state[model.a.weight][name].to_local()

    new = torch.empty_like(optimizer.state[sharded]["exp_avg"])
    new._local_tensor.fill_(5.0)
    optimizer.state[sharded]["exp_avg"] = new
    assert torch.equal(values(state)["optimizer.a.weight.exp_avg"], new.to_local())

    new._local_tensor = torch.full_like(new._local_tensor, 6.0)
    assert torch.equal(values(state)["optimizer.a.weight.exp_avg"], new.to_local())

    loaded(model, optimizer)
    found = values(state)["optimizer.a.weight.exp_avg"]
    assert found[0, 0] == 7 and found.data_ptr() == local("exp_avg").data_ptr()
    update(model, optimizer)
    assert torch.equal(values(state)["optimizer.a.weight.exp_avg_sq"], local("exp_avg_sq"))

    with torch.no_grad():
        model(torch.ones(1, 4))
    # Set while the parameter is gathered.
    optimizer.state[sharded]["more"] = torch.ones_like(sharded.detach())
    assert "optimizer.a.weight.more" in values(state)
    model.reshard()
    assert torch.equal(values(state)["model.a.weight"], sharded.to_local())

    made = {name: distribute_tensor(torch.full(tuple(p.shape), 5.0), mesh, p.placements)
            for name, p in model.named_parameters()}
    model.load_state_dict(made, assign=True)
    for _ in range(2):
        with pytest.raises(ValueError, match="model.a.weight: replaced by another parameter"):
            state.pieces()
    return True


def check_tensor_parallel(rank, world):
    mesh = init_device_mesh("cpu", (world,))
    model = parallelize_module(Net(), mesh, {"a": ColwiseParallel()})
    state = TensorState(model)
    state.pieces()
    assert isinstance(model.a.weight, DTensor)
    model.a.weight = nn.Parameter(torch.zeros(4, 4))
    with pytest.raises(ValueError, match="model.a.weight: replaced by another parameter"):
        state.pieces()
    return True


@pytest.mark.parametrize("check", [check_sharded, check_tensor_parallel])
def test_what_was_replaced_on_ranks_is_seen(check):
    assert run_ranks(2, check) == [True, True]
