"""Lazy modules, whose shapes are known after one pass of a batch.

exact
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(24)
model = nn.Sequential(
    nn.LazyConv1d(4, kernel_size=3), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)
)
model(torch.zeros(2, 3, 10))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    signal = torch.randn(5, 3, 10)
    loss = nn.functional.mse_loss(model(signal), signal.mean(2)[:, :2])
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
