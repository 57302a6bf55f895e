"""A curriculum: the difficulty grows when the loss is low, and is kept in ck.values.

exact
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(36)
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.Adam(model.parameters(), lr=2e-2)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
ck.values["level"] = 1
ck.values["history"] = []
for step in range(ck.resume(), idiom.STEPS):
    width = 0.2 * ck.values["level"]
    x = (torch.rand(16, 1) * 2 - 1) * width
    loss = nn.functional.mse_loss(model(x), torch.sin(3 * x))
    opt.zero_grad()
    loss.backward()
    opt.step()
    ck.values["history"].append(loss.item())
    recent = ck.values["history"][-2:]
    if len(recent) == 2 and sum(recent) / 2 < 0.2:
        ck.values["level"] += 1
    idiom.made(step, loss + ck.values["level"])
    ck.step(step, loss=loss)
ck.close()
