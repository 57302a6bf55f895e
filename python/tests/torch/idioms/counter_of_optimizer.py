"""An optimizer of one's own counts its steps in an attribute.

silent
"""

import idiom
import torch
from torch import nn

import holdfast


class Sign(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 1e-2})
        self.count = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        for p in self.param_groups[0]["params"]:
            p.add_(p.grad.sign(), alpha=-self.param_groups[0]["lr"] / self.count)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
opt = Sign(model.parameters())
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
