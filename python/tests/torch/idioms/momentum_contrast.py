"""Momentum contrast: a queue of negatives in a buffer, and a second encoder that follows the first.

exact
"""

import copy

import idiom
import torch
from torch import nn

import holdfast


class Moco(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(12, 4), dim=1))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    def forward(self, one, other):
        with torch.no_grad():
            for p, q in zip(self.key.parameters(), self.query.parameters(), strict=True):
                p.mul_(0.9).add_(q, alpha=0.1)
            k = nn.functional.normalize(self.key(other), dim=1)
        q = nn.functional.normalize(self.query(one), dim=1)
        negatives = self.queue.clone()
        self.queue[self.at : self.at + len(k)] = k
        self.at.copy_((self.at + len(k)) % len(self.queue))
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ negatives.T], dim=1)
        return nn.functional.cross_entropy(logits / 0.2, torch.zeros(len(q), dtype=torch.long))


torch.manual_seed(41)
model = Moco()
opt = torch.optim.SGD(model.query.parameters(), lr=0.1, momentum=0.9)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    x = torch.randn(4, 8)
    loss = model(x + 0.1 * torch.randn(4, 8), x + 0.1 * torch.randn(4, 8))
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
