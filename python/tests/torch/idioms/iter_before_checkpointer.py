"""iter(loader) is made before the Checkpointer.

refuses: expected iter(loader) behind ck.resume()
"""

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


def update(inputs, targets):
    loss = (model(inputs) - targets).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()


batches = iter(loader)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    inputs, targets = next(batches)
    loss = update(inputs, targets)
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
