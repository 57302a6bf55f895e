"""Meta-learning: an inner update with functional_call, and an outer one by the optimizer.

exact
"""

import idiom
import torch
from torch import nn
from torch.func import functional_call

import holdfast

torch.manual_seed(45)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")


def task():
    """Points of a sine with an amplitude and a phase of its own."""
    amplitude, phase = torch.rand(2) * 3 + 0.1
    x = torch.rand(2, 6, 1) * 4 - 2
    return x, amplitude * torch.sin(x + phase)


for step in range(ck.resume(), idiom.STEPS):
    outer = 0.0
    for _ in range(2):
        x, y = task()
        weights = dict(model.named_parameters())
        inner = nn.functional.mse_loss(functional_call(model, weights, x[0]), y[0])
        slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        fast = {name: weights[name] - 0.05 * slope
                for name, slope in zip(weights, slopes, strict=True)}
        outer = outer + nn.functional.mse_loss(functional_call(model, fast, x[1]), y[1])
    opt.zero_grad()
    outer.backward()
    opt.step()
    idiom.made(step, outer)
    ck.step(step, loss=outer)
ck.close()
