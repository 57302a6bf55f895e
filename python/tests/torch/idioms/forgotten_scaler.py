"""A gradient scaler that the Checkpointer was not given.

says: scaler: GradScaler takes part in the training, and the Checkpointer was not given it
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(0)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
