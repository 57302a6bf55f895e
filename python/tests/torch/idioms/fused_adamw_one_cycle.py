"""Fused AdamW with OneCycleLR, which moves in every step, also the betas.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(4, 10), nn.SiLU(), nn.Linear(10, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.05, total_steps=idiom.STEPS)
x = torch.randn(28, 4)
loader = DataLoader(TensorDataset(x, x.prod(1, keepdim=True)), batch_size=4, shuffle=True)
ck = holdfast.Checkpointer(
    idiom.RUN, model=model, optimizer=opt, scheduler=sched, data=loader, every="1 steps",
    schedule=holdfast.Schedule(total_steps=idiom.STEPS),
)
step = ck.resume()
for _ in range(loader.epoch, 2):
    for inputs, targets in loader:
        loss = nn.functional.huber_loss(model(inputs), targets)
        loss.backward()
        opt.step()
        sched.step()
        opt.zero_grad()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
ck.close()
