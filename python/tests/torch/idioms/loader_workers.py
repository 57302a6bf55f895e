"""A plain DataLoader with two workers, in which the dataset draws random numbers.

exact
"""

import random

import idiom
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import holdfast


class Noisy(Dataset):
    def __len__(self):
        return 14

    def __getitem__(self, index):
        x = torch.full((4,), index / 14) + 0.1 * torch.randn(4)
        return x * random.uniform(0.9, 1.1) + float(np.random.normal(0, 0.01)), x.sum()


torch.manual_seed(30)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(Noisy(), batch_size=2, shuffle=True, num_workers=2)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps")
step = ck.resume()
for _ in range(loader.epoch, 2):
    for x, y in loader:
        loss = (model(x).squeeze(1) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
ck.close()
