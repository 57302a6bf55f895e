"""Parametrizations: spectral_norm with its power iteration, weight_norm and orthogonal.

exact
"""

import idiom
import torch
from torch import nn
from torch.nn.utils import parametrizations

import holdfast

torch.manual_seed(23)
model = nn.Sequential(
    parametrizations.spectral_norm(nn.Linear(6, 8)),
    nn.Tanh(),
    parametrizations.weight_norm(nn.Linear(8, 8)),
    nn.Tanh(),
    parametrizations.orthogonal(nn.Linear(8, 8)),
    nn.utils.spectral_norm(nn.Linear(8, 1)),
)
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    x = torch.randn(7, 6)
    loss = nn.functional.mse_loss(model(x), x.std(1, keepdim=True))
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
