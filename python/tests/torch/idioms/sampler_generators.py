"""A sampler that shuffles with Python's and NumPy's global generators, and with its own.

exact
"""

import random

import idiom
import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

import holdfast


class Shuffled(Sampler):
    """Shuffles four times."""

    def __init__(self):
        self.rng, self.np_rng = random.Random(3), numpy.random.default_rng(4)

    def __len__(self):
        return 40

    def __iter__(self):
        order = self.np_rng.permutation(numpy.random.permutation(40)).tolist()
        random.shuffle(order)
        self.rng.shuffle(order)
        yield from order


torch.manual_seed(0)
random.seed(0)
numpy.random.seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(40, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, sampler=Shuffled())
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps")
step = ck.resume()
for epoch in range(loader.epoch, 3):
    for inputs, targets in loader:
        loss = (model(inputs) - targets).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        loss = loss + random.random() + numpy.random.rand()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
        if step == idiom.STEPS:
            break
ck.close()
