"""One dataset, cut by two SubsetRandomSamplers, and an early stop by the best validation score.

exact
"""

import math

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import holdfast

torch.manual_seed(28)
x = torch.randn(40, 4)
data = TensorDataset(x, x.norm(dim=1, keepdim=True))
order = torch.randperm(40).tolist()
train = DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(order[:32]))
valid = DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(order[32:]))
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=train, every="1 steps")
ck.values.update(best=math.inf, bad_epochs=0)
step = ck.resume()
for _ in range(train.epoch, 100):
    for inputs, targets in train:
        loss = nn.functional.mse_loss(model(inputs), targets)
        opt.zero_grad()
        loss.backward()
        opt.step()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
        if step == idiom.STEPS:
            break
    with torch.no_grad():
        score = sum(nn.functional.mse_loss(model(a), b).item() for a, b in valid)
    ck.values["bad_epochs"] = 0 if score < ck.values["best"] else ck.values["bad_epochs"] + 1
    ck.values["best"] = min(score, ck.values["best"])
    if ck.values["bad_epochs"] > 3 or step == idiom.STEPS:
        break
ck.close()
