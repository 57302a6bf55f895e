"""A mean teacher: a second model that follows the first, and is not in model=.

says: module: teacher (Sequential) changes with the training, and the Checkpointer was not given it
"""

import copy

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
teacher = copy.deepcopy(model).requires_grad_(False)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean() + (model(x) - teacher(x)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for ours, theirs in zip(teacher.parameters(), model.parameters(), strict=True):
            ours.lerp_(theirs, 0.1)
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
