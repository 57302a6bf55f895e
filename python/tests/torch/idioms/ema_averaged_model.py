"""An exponential moving average of the weights (swa_utils.AveragedModel), given as ema=.

exact
"""

import idiom
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import holdfast

torch.manual_seed(17)
model = nn.Sequential(nn.Linear(4, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 1))
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
held_out = torch.randn(16, 4)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, ema=ema, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema.update_parameters(model)
    ema.eval()
    with torch.no_grad():
        averaged = (ema(held_out) - held_out.sum(1, keepdim=True)).pow(2).mean()
    idiom.made(step, loss + averaged)
    ck.step(step, loss=loss)
ck.close()
