"""Fine-tuning: the backbone is frozen at first and is unfrozen in the middle of the training.

exact
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(21)
backbone = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU())
head = nn.Linear(12, 3)
model = nn.Sequential(backbone, head)
opt = torch.optim.AdamW(
    [{"params": head.parameters()}, {"params": backbone.parameters(), "lr": 1e-4}], lr=1e-2
)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    backbone.requires_grad_(step >= 6)
    backbone.train(step >= 6)
    x, y = torch.randn(6, 6), torch.randint(0, 3, (6,))
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
