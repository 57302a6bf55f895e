"""A RandomSampler draws the order from a generator of its own, chunk by chunk.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import holdfast

torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=1e-2)
data = TensorDataset(torch.rand(40, 4))
sampler = RandomSampler(data, replacement=True, num_samples=72, generator=generator)
loader = DataLoader(data, batch_size=8, sampler=sampler)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps",
                           verbose=False)
step = ck.resume()
for epoch in range(loader.epoch, 2):
    for (x,) in loader:
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        idiom.made(step, loss)
        ck.step(step)
        step += 1
        if step == idiom.STEPS:
            break
ck.close()
