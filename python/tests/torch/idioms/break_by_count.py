"""Each epoch is left after 3 batches, which enumerate(loader) counts.

exact, says: the resumed epoch ends after its batch 3, because the epoch before was left there
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
        if i == 3:
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
