"""Weights that are loaded between ck.resume() and the first update undo the resume, which is told."""

import pytest
import torch
from torch import nn

import holdfast


def train(run, stop, behind=lambda model: None, in_step=lambda model: None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Checkpointer(run, model=model, optimizer=opt, every="1 steps") as ck:
        start = ck.resume()
        behind(model)
        for step in range(start, stop):
            in_step(model)
            model(torch.randn(4, 4)).sum().backward()
            opt.step()
            opt.zero_grad()
            ck.step(step)


def load(model):
    model.load_state_dict({name: one + 1 for name, one in model.state_dict().items()})


def load_data(model):
    model[2].weight.data.copy_(torch.ones(1, 4))


def clip(model):
    for p in model.parameters():
        p.data.mul_(0.9)


def move(model):
    for p in model.parameters():
        p.data = p.data.clone()


@pytest.mark.parametrize(("behind", "in_step", "names"), [
    (load, lambda model: None, "model.0.bias"), (load_data, lambda model: None, "(model.2.weight)"),
    (lambda model: None, clip, ""), (move, lambda model: None, ""), (lambda model: None, lambda model: None, ""),
], ids=["loaded", "one through .data", "clipped in each step", "moved", "nothing"])
def test_what_undoes_a_resume_is_told_at_the_resume_alone(tmp_path, caplog, behind, in_step, names):
    for stop, count in ((3, 0), (6, bool(names))):
        train(tmp_path, stop, behind, in_step)
        told = [one for one in caplog.messages if "between resume() and the first update" in one]
        assert len(told) == count and all(names in one for one in told), caplog.text
