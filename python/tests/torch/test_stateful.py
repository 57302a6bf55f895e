"""Schedulers, scalers, averages and users' own objects are saved and restored."""

from collections import OrderedDict

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel
from training import Toy

import holdfast
from holdfast.torch.state.object_groups import as_one_stateful
from holdfast.torch.state.stateful import Stateful
from holdfast.torch.values.dtypes import SavedTensor


def through_a_checkpoint(folder, source, target):
    tree, pieces = Stateful("thing", source).capture()
    tensors = {piece.name: piece.tensor for piece in pieces}
    with holdfast.Saver(folder, writing=holdfast.Writing(space_reserve=0)) as saver:
        saver.save(1, tensors or {"none": torch.zeros(1)}, {"tree": tree})
    saved = {p.name: SavedTensor(p.tensor.dtype, p.shape) for p in pieces}
    holder = Stateful("thing", target)
    room = {p.name: p.tensor for p in holder.allocate(tree, saved)}
    holdfast.restore(folder, room)
    holder.load()


class Mine:
    def __init__(self):
        self.state = None

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_a_users_object_comes_back(tmp_path):
    source, target = Mine(), Mine()
    source.state = OrderedDict(a=(1, [torch.arange(3)]), b={"x": torch.rand(2).bfloat16()})
    through_a_checkpoint(tmp_path / "run", source, target)
    assert type(target.state) is OrderedDict and target.state["a"][0] == 1
    assert torch.equal(target.state["a"][1][0], torch.arange(3))
    assert torch.equal(target.state["b"]["x"], source.state["b"]["x"])


def test_a_scaler_in_use_comes_back_with_its_scale(tmp_path):
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1)
    source = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    for step in range(4):
        source.scale(weight.sum() * (float("inf") if step == 3 else 1)).backward()
        source.step(optimizer)
        source.update()
        optimizer.zero_grad()
    target = torch.amp.GradScaler("cpu")
    through_a_checkpoint(tmp_path / "run", source, target)
    assert target.state_dict() == source.state_dict()
    assert source.state_dict()["scale"] == 1024.0  # it was doubled once and halved once


def test_a_scaler_that_was_not_used_yet_comes_back(tmp_path):
    target = torch.amp.GradScaler("cpu")
    through_a_checkpoint(tmp_path / "run", torch.amp.GradScaler("cpu", init_scale=4.0), target)
    assert target.get_scale() == 4.0


def test_so_do_several_of_them(tmp_path):
    source = [torch.amp.GradScaler("cpu", init_scale=scale) for scale in (8.0, 2.0)]
    for scaler in source:
        scaler.scale(torch.ones(1))  # makes the scaler's tensors
    target = {"0": torch.amp.GradScaler("cpu"), "1": torch.amp.GradScaler("cpu")}
    through_a_checkpoint(tmp_path / "run", as_one_stateful("thing", source),
                         as_one_stateful("thing", target))
    assert [scaler.get_scale() for scaler in target.values()] == [8.0, 2.0]
    assert target["1"].state_dict() == source[1].state_dict()
    assert isinstance(target["0"].state_dict()["scale"], float)


def test_an_average_of_a_model_comes_back(tmp_path):
    source, target = AveragedModel(nn.Linear(3, 2)), AveragedModel(nn.Linear(3, 2))
    source.update_parameters(nn.Linear(3, 2))
    through_a_checkpoint(tmp_path / "run", source, target)
    assert target.n_averaged == 1
    assert torch.equal(source.module.weight, target.module.weight)


def test_a_scheduler_comes_back(tmp_path):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    source = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for _ in range(3):
        optimizer.step()
        source.step()
    other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    target = torch.optim.lr_scheduler.CosineAnnealingLR(other, 10)
    through_a_checkpoint(tmp_path / "run", source, target)
    assert target.state_dict() == source.state_dict()


def test_what_has_no_state_dict_is_refused_by_its_key():
    with pytest.raises(TypeError, match=r"loader: a builtins.list without state_dict\(\)"):
        Stateful("loader", [1, 2])
    source = Mine()
    source.state = {"deep": [object()]}
    with pytest.raises(TypeError, match="thing.deep.0: a builtins.object"):
        Stateful("thing", source).capture()
    source.state = {"w": torch.zeros(1)}
    tree, _ = Stateful("thing", source).capture()
    with pytest.raises(ValueError, match="thing.w: not in the checkpoint; expected it, as thing"):
        Stateful("thing", source).allocate(tree, {})


class Average:
    """An object that keeps a second set of sharded parameters."""

    def __init__(self, model):
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def state_dict(self):
        return {"shadow": self.shadow}

    def load_state_dict(self, state):
        self.shadow = state["shadow"]


def average_on_other_ranks(rank, world):
    """Saves it sharded over all ranks, and loads it on one rank."""
    torch.manual_seed(0)
    model = nn.Linear(3, 7)
    wanted = model.weight.detach().clone()
    whole = Average(model)
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    tree, pieces = Stateful("ema", Average(model)).capture()
    mine = {p.name: (p.tensor, p.shape, p.box.extents) for p in pieces}
    everyone = [None] * world
    dist.all_gather_object(everyone, mine)
    saved = {p.name: SavedTensor(p.tensor.dtype, p.shape) for p in pieces}
    for target in (whole, Average(model)):
        holder = Stateful("ema", target)
        for piece in holder.allocate(tree, saved):
            full = torch.empty(piece.shape)
            for rank_pieces in everyone:
                tensor, _, extents = rank_pieces[piece.name]
                full[tuple(slice(lo, hi) for lo, hi in extents)] = tensor
            piece.tensor.copy_(full[tuple(slice(lo, hi) for lo, hi in piece.box.extents)])
        holder.load()
        loaded = target.shadow["weight"]
        if target is whole:
            assert torch.equal(loaded, wanted)
        else:
            assert torch.equal(loaded.full_tensor(), wanted)


def test_a_sharded_average_comes_back_whole_and_sharded():
    run_ranks(3, average_on_other_ranks)


class Forgetful:
    """Holds something, and saves nothing of it."""

    def __init__(self, **held):
        vars(self).update(held)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def saved_with(run, thing, change=lambda thing: None):
    toy = Toy()
    with toy.checkpointer(run, objects={"mine": thing}, scaler=torch.amp.GradScaler(enabled=False)
                          ) as ck:
        for step in range(3):
            change(thing)
            toy.train(ck, [step])
    with Toy().checkpointer(run, objects={"mine": thing}, scaler=torch.amp.GradScaler(enabled=False)
                            ) as ck:
        ck.resume()
    return ck.report.inexact


@pytest.mark.parametrize("thing, change", [
    (Forgetful(total=torch.zeros(1)), lambda thing: None),
    (Forgetful(best=0.5), lambda thing: setattr(thing, "best", thing.best + 1))])
def test_an_object_that_saves_nothing_of_what_it_holds_is_told_of(tmp_path, caplog, thing, change):
    assert saved_with(tmp_path / "run", thing, change) == [
        "mine: its state_dict() was empty when it was saved, so that what it held is lost"]
    assert sum("mine: its state_dict() is empty" in one.message for one in caplog.records) == 1


@pytest.mark.parametrize("thing", [Forgetful(), Forgetful(patience=3, history=[]),
                                   nn.CrossEntropyLoss(weight=None)])
def test_an_object_that_has_nothing_to_save_is_not(tmp_path, caplog, thing):
    assert saved_with(tmp_path / "run", thing) == [] and "state_dict" not in caplog.text
