"""ck.step() at the top of the loop, before the step that it tells of.

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
loss = 0.0
for step in range(ck.resume(), idiom.STEPS):
    idiom.made(step, loss)
    ck.step(step)
    loss = model(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
ck.close()
