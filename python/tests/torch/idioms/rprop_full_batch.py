"""Rprop on the whole data in each step, with steps that are counted from 1.

exact
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(8)
model = nn.Sequential(nn.Linear(2, 16), nn.Sigmoid(), nn.Linear(16, 1))
opt = torch.optim.Rprop(model.parameters(), lr=0.01)
points = torch.rand(64, 2) * 2 - 1
inside = (points.norm(dim=1, keepdim=True) < 0.8).float()
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
first = max(1, ck.resume())
for step in range(first, idiom.STEPS + 1):
    opt.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(model(points), inside)
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
