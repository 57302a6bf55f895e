"""Gradient accumulation, with ck.step() after each micro-batch.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast

ACCUMULATE = 2
torch.manual_seed(15)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Dropout(0.2), nn.Linear(10, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.randn(42, 5)
loader = DataLoader(TensorDataset(x, x.mean(1, keepdim=True)), batch_size=6, shuffle=True)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps")
step = ck.resume()
for _ in range(loader.epoch, 2):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        (loss / ACCUMULATE).backward()
        if (step + 1) % ACCUMULATE == 0:
            opt.step()
            opt.zero_grad()
        idiom.made(step, loss, saved=step - 1 - step % ACCUMULATE)
        ck.step(step, loss=loss)
        step += 1
ck.close()
