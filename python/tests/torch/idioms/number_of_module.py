"""A module has a plain number that the training changes, a temperature.

silent
"""

import idiom
import torch
from torch import nn

import holdfast


class Cooling(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.temperature = nn.Linear(4, 8), nn.Linear(8, 1), 1.0

    def forward(self, x):
        return self.outer(torch.softmax(self.inner(x) / self.temperature, -1))


torch.manual_seed(0)
model = Cooling()
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    model.temperature *= 0.9
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
