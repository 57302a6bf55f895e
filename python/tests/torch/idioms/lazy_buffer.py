"""A buffer is registered as None and filled by the first forward pass.

exact
"""

import idiom
import torch
from torch import nn

import holdfast


class Normalize(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", None)
        self.register_buffer("seen", None, persistent=False)

    def forward(self, x):
        if self.mean is None:
            self.mean, self.seen = x.mean(0), torch.zeros((), dtype=torch.long)
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        self.seen += 1
        return (x - self.mean) * self.seen.sqrt()


torch.manual_seed(0)
model = nn.Sequential(Normalize(), nn.Linear(4, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps", verbose=False)
for step in range(ck.resume(), idiom.STEPS):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step)
ck.close()
