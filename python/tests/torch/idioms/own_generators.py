"""Generators of one's own, of torch, NumPy and Python, given in objects=.

exact
"""

import random

import idiom
import numpy as np
import torch
from torch import nn

import holdfast

noise = torch.Generator().manual_seed(34)
pick = np.random.default_rng(34)
flip = random.Random(34)
torch.manual_seed(0)
x = torch.randn(50, 4)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
ck = holdfast.Checkpointer(
    idiom.RUN, model=model, optimizer=opt, every="1 steps",
    objects={"noise": noise, "pick": pick, "flip": flip},
)
for step in range(ck.resume(), idiom.STEPS):
    clean = x[torch.from_numpy(pick.choice(50, size=8, replace=False))]
    if flip.random() < 0.5:
        clean = clean.flip(1)
    noisy = clean + 0.2 * torch.randn(clean.shape, generator=noise)
    loss = nn.functional.mse_loss(model(noisy), clean)
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
