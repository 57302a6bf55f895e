"""A sharpness-aware step: two backward passes, and weights that move and come back between them.

exact, says: was written to between two updates
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(46)
model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    x, y = torch.randn(6, 5), torch.randint(0, 3, (6,))
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    with torch.no_grad():
        before = [p.clone() for p in model.parameters()]
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.add_(p.grad, alpha=float(0.05 / norm))
    opt.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p, old in zip(model.parameters(), before, strict=True):
            p.copy_(old)
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
