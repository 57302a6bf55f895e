"""A dataset that augments with Python's, NumPy's and torch's global generators.

exact
"""

import random

import idiom
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import holdfast


class Augmented(Dataset):
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if random.random() < 0.5:
            image = image.flip(-1)
        image = image.roll(int(np.random.randint(-2, 3)), dims=-2)
        return image + 0.05 * torch.randn_like(image), index % 3


random.seed(25)
np.random.seed(25)
torch.manual_seed(25)
model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Augmented(torch.rand(14, 4, 4)), batch_size=2, shuffle=True)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps")
step = ck.resume()
for _ in range(loader.epoch, 2):
    for image, label in loader:
        loss = nn.functional.cross_entropy(model(image), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
ck.close()
