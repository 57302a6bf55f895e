"""A dataset draws from the very generator that also shuffles the loader.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import holdfast


class Noisy(Dataset):
    def __init__(self, generator):
        self.generator = generator

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((4,), index / 40) + torch.rand(4, generator=self.generator)


torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=1e-2)
loader = DataLoader(Noisy(generator), batch_size=8, shuffle=True, generator=generator)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps",
                           verbose=False)
step = ck.resume()
for epoch in range(loader.epoch, 3):
    for x in loader:
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
