"""A validation on a DataLoader of its own behind ck.step(), in every third step.

says: generators: random numbers are drawn behind ck.step() in steps that were saved
"""

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(400, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(data, batch_size=8, shuffle=True)
validation = DataLoader(data, batch_size=100)  # each pass draws a seed for workers, though there are none
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps")
for step, (inputs, targets) in zip(range(ck.resume(), idiom.STEPS), loader):
    loss = (model(inputs) - targets).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
    if step % 3 == 0:
        model.eval()
        with torch.no_grad():
            sum(model(inputs).sum() for inputs, _ in validation)
        model.train()
ck.close()
