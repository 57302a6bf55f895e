"""Averaged weights that are copied into the model through .data behind the loop.

exact, says: the model has changed since then (model.weight
"""

import idiom
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import holdfast

torch.manual_seed(0)
model = nn.Linear(4, 1)
opt = torch.optim.AdamW(model.parameters(), lr=0.1)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, ema=ema,
                           every=lambda step, seconds: step in (3, 8))
for step in range(ck.resume(), idiom.STEPS):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema.update_parameters(model)
    idiom.made(step, loss)
    ck.step(step, loss=loss)
for mine, average in zip(model.parameters(), ema.module.parameters(), strict=True):
    mine.data.copy_(average)
ck.close()
