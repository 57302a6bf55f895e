"""A loop over steps with SGD, Nesterov's momentum, weight decay and holdfast.data.loader.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import TensorDataset

import holdfast

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
inputs = torch.randn(30, 6)
dataset = TensorDataset(inputs, inputs[:, :2] * 0.5)
loader = holdfast.data.loader(dataset, batch_size=4, seed=7)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps")
start = ck.resume()
for step, (x, y) in zip(range(start, idiom.STEPS), loader, strict=False):
    loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
