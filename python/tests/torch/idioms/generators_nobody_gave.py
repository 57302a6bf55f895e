"""Dataset, collate function, module and script draw from random generators of their own.

exact
"""

import functools
import random

import idiom
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

import holdfast

flips = random.Random(5)  # a global of the script


class Noisy(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(3)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        x = torch.full((4,), index / 40)
        return x + torch.from_numpy(self.rng.normal(size=4)).float() * flips.choice([-1, 1])


class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(7)

    def forward(self, x):
        return x + 0.1 * torch.randn(x.shape, generator=self.generator)


def collate(rows, rng):
    return torch.stack(rows) * rng.random_sample()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), Noise(), nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(Subset(Noisy(), range(38)), batch_size=8, shuffle=True,
                    collate_fn=functools.partial(collate, rng=np.random.RandomState(9)))
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps",
                           verbose=False)
step = ck.resume()
for epoch in range(loader.epoch, 3):
    for x in loader:
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        idiom.made(step, loss)
        ck.step(step)
        step += 1
        if step == idiom.STEPS:
            break
ck.close()
