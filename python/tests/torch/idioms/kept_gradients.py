"""Gradients are halved behind the update and never cleared: a momentum by hand.

silent
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=1e-2)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    opt.step()
    for p in model.parameters():
        p.grad.mul_(0.5)
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
