"""Folds of a cross-validation, one after another in one process, each with a run of its own.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import holdfast

torch.manual_seed(0)
x = torch.randn(42, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
for fold in range(2):
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(Subset(data, range(14 * fold, 14 * fold + 28)), batch_size=4, shuffle=True)
    run = f"{idiom.RUN}/fold-{fold}"
    with holdfast.Checkpointer(run, model=model, optimizer=opt, data=loader, every="1 steps") as ck:
        step = ck.resume()
        for _ in range(loader.epoch, 1):
            for inputs, targets in loader:
                loss = (model(inputs) - targets).pow(2).mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                idiom.made(7 * fold + step, loss, saved=step - 1, run=run)
                ck.step(step, loss=loss)
                step += 1
