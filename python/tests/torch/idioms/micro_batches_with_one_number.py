"""`ck.step()` is called for each micro-batch, with the number of the update that they share.

exact
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    for micro in range(4):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        (loss / 4).backward()
        if micro == 3:
            opt.step()
            opt.zero_grad()
            idiom.made(step, loss)
        ck.step(step)
ck.close()
