"""Activations that are computed again in the backward pass, with dropout in them.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import holdfast


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.2)) for _ in range(3)
        )
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.head(x)


torch.manual_seed(44)
model = Deep().double()
opt = torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    x = torch.randn(6, 8, dtype=torch.float64)
    loss = (model(x) - x.sum(1, keepdim=True)).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
