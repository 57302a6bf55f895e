"""Averages, teachers and tensors like those of the model that change and were not given are named."""

import copy
import weakref

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import holdfast


class Shadow:
    """An average as many scripts write it."""

    def __init__(self, model, write):
        self.values, self.write = {n: p.detach().clone() for n, p in model.named_parameters()}, write

    def update(self, model):
        for name, p in model.named_parameters():
            self.write(self.values, name, p.detach())


def replace(values, name, p):
    values[name] = 0.9 * values[name] + 0.1 * p


def write_data(values, name, p):
    values[name].data.mul_(0.9).add_(p, alpha=0.1)


class Averaged(AveragedModel):
    def update(self, model):
        self.update_parameters(model)


class Teacher(nn.Module):
    """A module that holds a given one, too."""

    def __init__(self, model):
        super().__init__()
        self.student, self.teacher = model, copy.deepcopy(model)

    def update(self, model):
        with torch.no_grad():
            for q, p in zip(self.teacher.parameters(), model.parameters(), strict=True):
                q.lerp_(p, 0.1)


def train(run, follower, steps=5, update=None, **given):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    other = follower(model)
    given = {name: other for name in given}
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Checkpointer(run, model=model, optimizer=opt, every="1h", **given) as ck:
        for step in range(ck.resume(), steps):
            model(torch.rand(4, 3)).sum().backward()
            opt.step()
            opt.zero_grad()
            (update or type(other).update)(other, model)
            ck.step(step)
        return ck.check().unsaved


@pytest.mark.parametrize(("follower", "said"), [
    (lambda model: Shadow(model, replace), "average: other.values has tensors like those of the model"),
    (lambda model: Shadow(model, write_data), "average: other.values has tensors like those of the model"),
    (Averaged, "module: other (Averaged) changes with the training, and the Checkpointer was not given it"),
    (Teacher, "module: other (Teacher) changes with the training"),
], ids=["dict", "through .data", "AveragedModel", "a teacher beside its student"])
def test_what_follows_the_model_and_was_not_given_is_named_once(tmp_path, caplog, follower, said):
    listed = train(tmp_path, follower)
    assert [said in record.message for record in caplog.records] == [True], caplog.text
    assert [said in line for line in listed] == [True]


def test_an_average_in_the_variables_of_a_function_is_named(tmp_path, caplog):
    def follower(model):
        shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

        def move():
            for name, p in model.named_parameters():
                shadow[name].lerp_(p.detach(), 0.1)

        return move

    train(tmp_path, follower, update=lambda move, model: move())
    assert ["average: other().shadow has" in one.message for one in caplog.records] == [True]


def leave(other, model):
    """Changes nothing."""


@pytest.mark.parametrize(("follower", "update", "given"), [
    (Averaged, None, {"ema": None}),
    (lambda model: copy.deepcopy(model).requires_grad_(False), leave, {}),
    (lambda model: [p for p in model.parameters()], leave, {}),
    (lambda model: model.state_dict(), leave, {}),
    (lambda model: {"inner": nn.ModuleList([model])}, leave, {}),
    (lambda model: nn.DataParallel(model), leave, {}),
    (lambda model: [torch.zeros(3), torch.zeros(4)], lambda other, model: other[0].add_(1), {}),
], ids=["given", "frozen", "parameters", "state_dict", "holds the model", "a wrapper", "other shapes"])
def test_others_are_not(tmp_path, caplog, follower, update, given):
    assert train(tmp_path, follower, update=update, **given) == [] and not caplog.records


def test_weights_that_each_step_keeps_anew_are_not(tmp_path, caplog):
    held = []

    def update(other, model):
        held[:] = [[p.detach().clone() for p in model.parameters()]]

    assert train(tmp_path, lambda model: None, update=update) == [] and not caplog.records


def test_nothing_that_was_found_is_kept_alive(tmp_path):
    made = []

    def follower(model):
        shadow = Shadow(model, replace)
        made.append(weakref.ref(shadow))
        return shadow

    train(tmp_path, follower)
    assert made[0]() is None
