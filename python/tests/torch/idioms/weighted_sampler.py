"""A WeightedRandomSampler for classes of unequal size, with replacement.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import holdfast

torch.manual_seed(27)
labels = torch.tensor([0] * 16 + [1] * 5)
x = torch.randn(21, 4) + labels[:, None]
weights = (1.0 / torch.bincount(labels))[labels]
sampler = WeightedRandomSampler(weights, num_samples=len(labels), replacement=True)
loader = DataLoader(TensorDataset(x, labels), batch_size=3, sampler=sampler)
model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps")
step = ck.resume()
for epoch in range(loader.epoch, 2):
    for inputs, label in loader:
        loss = nn.functional.cross_entropy(model(inputs), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
ck.close()
