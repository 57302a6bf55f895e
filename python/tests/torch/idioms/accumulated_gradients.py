"""Gradients of five micro-batches are accumulated, with ck.step() after each of them.

exact
"""

import idiom
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import holdfast

torch.manual_seed(0)
model = nn.Linear(4, 1)
opt = torch.optim.AdamW(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 4)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, scheduler=scheduler, ema=ema,
                           every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    if step % 5 == 3:
        opt.step()
        opt.zero_grad()
        scheduler.step()
        ema.update_parameters(model)
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
