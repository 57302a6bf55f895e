"""torchdata's StatefulDataLoader as the `data` of a Checkpointer."""

import itertools

import pytest
import torch
from noisy_samples import Samples
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

import holdfast


def run(folder, workers, seed, steps):
    """Trains up to that step, 10 steps in an epoch. Returns the losses and the weights."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = StatefulDataLoader(Samples(workers == 0), 2, shuffle=True, num_workers=workers)
    losses = []
    with holdfast.Checkpointer(folder, model=model, optimizer=optimizer, data=loader,
                               every="1 steps", keep=2,
                               writing=holdfast.Writing(space_reserve=0)) as checkpointer:
        step = start = checkpointer.resume()
        while step < steps:
            for batch in itertools.islice(loader, steps - step):
                loss = model(batch).pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
                checkpointer.step(step, loss=loss)
                step += 1
    return start, losses, [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stops", [(4,), (10,), (3, 7), (14,)])  # an epoch has 10 batches
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(tmp_path, workers, stops):
    _, wanted, weights = run(tmp_path / "whole", workers, 0, 17)
    seen = []
    for seed, stop in enumerate([*stops, 17]):
        start, losses, last = run(tmp_path / "run", workers, seed, stop)
        assert start == len(seen)
        seen += losses
    assert seen == wanted
    assert all(torch.equal(a, b) for a, b in zip(weights, last, strict=True))
