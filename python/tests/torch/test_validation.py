"""Shows where a loop may validate without changing the bits of a resumed training.

A save holds the generators as they are at step(). What is drawn between step() and the next update
belongs to the next step: a resumed training does not draw it again. docs/getting_started.md says
so, and names the ways out that are tested here.
"""

import contextlib

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast

SAVED, STEPS = 4, 10  # validates after each step, and saves after this one


def losses_of(run, validate, steps):
    """Trains to the given step, and resumes if the run has one. Returns the losses by step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(80, 8))
    loader = holdfast.data.resumable(DataLoader(data, batch_size=8, shuffle=True))
    held_out = DataLoader(data, batch_size=40)  # not shuffled: only its iterator draws a number

    def draw():
        for (x,) in held_out:
            model(x)

    losses = {}
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, data=loader,
                               every=lambda step, _: step == SAVED) as ck:
        for step, (x,) in zip(range(ck.resume(), steps), loader):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if validate == "before":
                draw()
            ck.step(step)
            losses[step] = loss.item()
            if validate in ("after", "forked"):
                forked = torch.random.fork_rng() if validate == "forked" else contextlib.nullcontext()
                with forked:
                    draw()
        ck.close(save=False)
    return losses


@pytest.mark.parametrize(("validate", "exact"),
                         [("before", True), ("forked", True), ("after", False)])
def test_what_is_drawn_after_step_belongs_to_the_next_one(tmp_path, validate, exact):
    whole = losses_of(tmp_path / "whole", validate, STEPS)
    losses_of(tmp_path / "stopped", validate, SAVED + 2)
    resumed = losses_of(tmp_path / "stopped", validate, STEPS)
    assert min(resumed) == SAVED + 1
    assert (resumed == {step: whole[step] for step in resumed}) == exact
