"""LBFGS with a closure that it calls several times in each step.

exact
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(7)
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
x = torch.rand(32, 3)
y = (x.sin() * 2).sum(1, keepdim=True)
opt = torch.optim.LBFGS(
    model.parameters(), lr=0.5, max_iter=4, history_size=5, line_search_fn="strong_wolfe"
)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")


def closure():
    opt.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for step in range(ck.resume(), idiom.STEPS):
    loss = opt.step(closure)
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
