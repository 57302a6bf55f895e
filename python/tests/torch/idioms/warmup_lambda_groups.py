"""Adam with AMSGrad, parameter groups with and without decay, and a warm-up by LambdaLR.

exact
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(2)
model = nn.Sequential(nn.Linear(5, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
decayed = [p for p in model.parameters() if p.ndim > 1]
others = [p for p in model.parameters() if p.ndim <= 1]
opt = torch.optim.Adam(
    [
        {"params": decayed, "weight_decay": 0.01},
        {"params": others, "weight_decay": 0.0, "lr": 3e-3},
    ],
    lr=1e-2,
    amsgrad=True,
)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: min(1.0, (step + 1) / 10))
ck = holdfast.Checkpointer(
    idiom.RUN, model=model, optimizer=opt, scheduler=sched, every="1 steps"
)
for step in range(ck.resume(), idiom.STEPS):
    x = torch.randn(8, 5)
    labels = torch.randint(0, 3, (8,))
    loss = nn.functional.cross_entropy(model(x), labels, label_smoothing=0.1)
    opt.zero_grad(set_to_none=False)
    loss.backward()
    opt.step()
    sched.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss.item())
ck.close()
