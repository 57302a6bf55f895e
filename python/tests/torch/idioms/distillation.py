"""Distillation from a frozen teacher, which is made anew from its file in each start.

exact
"""

import idiom
import torch
from torch import nn
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR, ExponentialLR

import holdfast

torch.manual_seed(42)
teacher = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5)).eval().requires_grad_(False)
student = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 5))
opt = torch.optim.AdamW(student.parameters(), lr=2e-2)
sched = ChainedScheduler([ConstantLR(opt, factor=0.3, total_iters=4), ExponentialLR(opt, 0.95)])
ck = holdfast.Checkpointer(
    idiom.RUN, model=student, optimizer=opt, scheduler=sched, every="1 steps"
)
temperature = 2.0
for step in range(ck.resume(), idiom.STEPS):
    x = torch.randn(8, 6)
    with torch.no_grad():
        soft = (teacher(x) / temperature).log_softmax(1)
    loss = nn.functional.kl_div(
        (student(x) / temperature).log_softmax(1), soft, log_target=True, reduction="batchmean"
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
