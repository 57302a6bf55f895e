"""Mixup: NumPy draws the weight and torch the partners, in the loop itself.

exact
"""

import idiom
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast

np.random.seed(26)
torch.manual_seed(26)
x, labels = torch.randn(21, 5), torch.randint(0, 4, (21,))
loader = DataLoader(TensorDataset(x, labels), batch_size=3, shuffle=True)
model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 4))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss()
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps")
step = ck.resume()
for _ in range(loader.epoch, 2):
    for inputs, target in loader:
        share = np.random.beta(0.4, 0.4)
        partner = torch.randperm(len(inputs))
        logits = model(share * inputs + (1 - share) * inputs[partner])
        loss = share * criterion(logits, target) + (1 - share) * criterion(logits, target[partner])
        opt.zero_grad()
        loss.backward()
        opt.step()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
ck.close()
