"""ck.step() between loss.backward() and the update.

says: ck.step() comes before the update of the optimizer
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(0)
model = nn.Linear(4, 1)
opt = torch.optim.AdamW(model.parameters(), lr=0.1)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
    opt.step()
ck.close()
