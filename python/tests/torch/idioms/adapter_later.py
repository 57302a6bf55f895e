"""Adapters are put into the model in mid-run; a new process looks into the run before it builds the model.

exact
"""

import idiom
import torch
from torch import nn

import holdfast


class Adapted(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.lora_down = nn.Parameter(torch.randn(inner.in_features, 2))
        self.lora_up = nn.Parameter(torch.zeros(2, inner.out_features))

    def forward(self, x):
        return self.inner(x) + x @ self.lora_down @ self.lora_up


def adapt(model, opt):
    model[0] = Adapted(model[0].requires_grad_(False))
    opt.add_param_group({"params": [model[0].lora_down, model[0].lora_up], "lr": 1e-3})


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
try:
    saved = list(holdfast.open(idiom.RUN))
except holdfast.NotFoundError:  # the run has not begun
    saved = []
if any("lora" in name for name in saved):
    adapt(model, opt)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps", verbose=False)
for step in range(ck.resume(), idiom.STEPS):
    if step == 6:
        adapt(model, opt)
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step)
ck.close()
