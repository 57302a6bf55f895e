"""A restart in the first of epochs that are left after 6 batches, which enumerate(loader) counts.

says: the loop leaves its epochs by a count that begins with 0 (`if i == 6` of line 22)
"""

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(80, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps")
step = ck.resume()
for epoch in range(loader.epoch, idiom.STEPS):
    for i, (inputs, targets) in enumerate(loader):
        if i == 6:
            break
        loss = (model(inputs) - targets).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
        if step == idiom.STEPS:
            break
    if step == idiom.STEPS:
        break
ck.close()
