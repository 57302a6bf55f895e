"""ck.step() between the update and the scheduler's step.

says: ck.step() comes before the step of the scheduler
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(0)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, scheduler=scheduler,
                           every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
    scheduler.step()
ck.close()
