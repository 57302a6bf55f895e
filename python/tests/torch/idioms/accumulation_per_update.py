"""Gradient accumulation, with ck.step() after each update and a scheduler beside it.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import TensorDataset

import holdfast

torch.manual_seed(16)
model = nn.Sequential(nn.Linear(5, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=idiom.STEPS, power=2)
x = torch.randn(48, 5)
loader = holdfast.data.loader(TensorDataset(x, x.amax(1, keepdim=True)), batch_size=6, seed=1)
ck = holdfast.Checkpointer(
    idiom.RUN, model=model, optimizer=opt, scheduler=sched, data=loader, every="1 steps"
)
start = ck.resume()
batches = iter(loader)
for step in range(start, idiom.STEPS):
    opt.zero_grad()
    total = 0.0
    for _ in range(3):
        inputs, targets = next(batches)
        loss = nn.functional.mse_loss(model(inputs), targets) / 3
        loss.backward()
        total += loss.item()
    opt.step()
    sched.step()
    idiom.made(step, total)
    ck.step(step, loss=total)
ck.close()
