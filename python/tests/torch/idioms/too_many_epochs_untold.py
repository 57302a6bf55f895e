"""for epoch in range(epochs), which begins with 0 again after a restart, without total_steps=.

says: the loop's epoch is 0 after a resume in epoch 1
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
for epoch in range(3):
    for inputs, targets in loader:
        loss = update(inputs, targets)
        if step < idiom.STEPS:
            idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
ck.close()
