"""A large loader zipped with itertools.cycle of a small one.

exact
"""

import itertools

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(40, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
y = torch.randn(12, 4)
small = DataLoader(TensorDataset(y), batch_size=4, shuffle=True)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps",
                           data={"large": loader, "small": small})
step = ck.resume()
for epoch in range(loader.epoch, 3):
    for (inputs, targets), (more,) in zip(loader, itertools.cycle(small)):
        loss = (model(inputs) - targets).pow(2).mean() + model(more).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
        if step == idiom.STEPS:
            break
ck.close()
