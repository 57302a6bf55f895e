"""A new DataLoader is made in each epoch.

refuses: another DataLoader reads the same dataset
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


ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps")
step = ck.resume()
while step < idiom.STEPS:
    again = DataLoader(loader.dataset, batch_size=8, shuffle=True)
    for inputs, targets in again:
        loss = update(inputs, targets)
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
        if step == idiom.STEPS:
            break
ck.close()
