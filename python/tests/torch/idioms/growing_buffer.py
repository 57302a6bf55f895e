"""A buffer to which each step adds rows, as the queue of a memory bank does.

exact
"""

import idiom
import torch
from torch import nn

import holdfast


class Bank(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.register_buffer("keys", torch.zeros(1, 4))

    def forward(self, x):
        found = self.net(x)
        self.keys = torch.cat([self.keys, found.detach()])[-20:]
        return found @ self.keys.T


torch.manual_seed(0)
model = Bank()
opt = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    loss = model(torch.randn(3, 4)).logsumexp(1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
