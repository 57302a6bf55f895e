"""A random generator that is a global variable of the script, and that only its loop uses.

exact
"""

import idiom
import numpy as np
import torch
from torch import nn

import holdfast

torch.manual_seed(0)
rng = np.random.default_rng(7)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    x = torch.from_numpy(rng.normal(size=(8, 4))).float()
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
