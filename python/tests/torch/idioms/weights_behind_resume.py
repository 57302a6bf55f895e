"""Pretrained weights are loaded behind ck.resume(), which undoes it.

says: parameters were written to between resume() and the first update
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
pretrained = {name: one.clone() for name, one in model.state_dict().items()}
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
start = ck.resume()
model.load_state_dict(pretrained)
for step in range(start, idiom.STEPS):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
