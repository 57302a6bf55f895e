"""AdamW with foreach, gradients clipped by their norm, cosine with warm restarts in part epochs.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast

torch.manual_seed(4)
model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Dropout(0.3), nn.Linear(10, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=1, T_mult=2)
x = torch.randn(24, 4)
loader = DataLoader(TensorDataset(x, x.abs().sum(1, keepdim=True)), batch_size=5, shuffle=True)
ck = holdfast.Checkpointer(
    idiom.RUN, model=model, optimizer=opt, scheduler=sched, data=loader, every="1 steps"
)
step = ck.resume()
for epoch in range(loader.epoch, 3):
    for inputs, targets in loader:
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        opt.step()
        sched.step(step / len(loader))
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
        if step == idiom.STEPS:
            break
ck.close()
