"""A `while` loop over an endless resumable DataLoader, with a counter that stops it.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast

torch.manual_seed(33)
x = torch.randn(20, 3)
plain = DataLoader(TensorDataset(x, x.cumsum(1)), batch_size=6, shuffle=True)
loader = holdfast.data.resumable(plain, epochs=None)
model = nn.Sequential(nn.Linear(3, 9), nn.Mish(), nn.Linear(9, 3))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps")
step = ck.resume()
batches = iter(loader)
while step < idiom.STEPS:
    inputs, targets = next(batches)
    opt.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
    step += 1
ck.close()
