"""NAdam with a linear warm-up and a cosine behind it (SequentialLR).

exact
"""

import idiom
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

import holdfast

torch.manual_seed(9)
model = nn.Sequential(nn.Linear(7, 14), nn.ELU(), nn.Linear(14, 7))
opt = torch.optim.NAdam(model.parameters(), lr=2e-2, decoupled_weight_decay=True)
warmup = LinearLR(opt, start_factor=0.1, total_iters=5)
sched = SequentialLR(opt, [warmup, CosineAnnealingLR(opt, T_max=9)], milestones=[5])
with holdfast.Checkpointer(
    idiom.RUN, model=model, optimizer=opt, scheduler=sched, every="1 steps"
) as ck:
    for step in range(ck.resume(), idiom.STEPS):
        x = torch.randn(6, 7)
        noisy = x + 0.1 * torch.randn_like(x)
        loss = nn.functional.mse_loss(model(noisy), x)
        loss.backward()
        opt.step()
        sched.step()
        opt.zero_grad()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
