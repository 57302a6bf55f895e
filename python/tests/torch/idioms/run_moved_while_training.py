"""Somebody moves the run directory away while the training runs.

exact, says: was removed or moved away; it is made anew, and training goes on saving there
"""

import os

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step)
    if step == 11:
        os.rename(idiom.RUN, f"{idiom.RUN}.moved")
ck.close()
