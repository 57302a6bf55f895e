"""Several optimizers in a dict, made by their names from a configuration.

exact
"""

import idiom
import torch
from torch import nn

import holdfast

CONFIG = {
    "stem": ("Adadelta", {"lr": 1.0}),
    "body": ("Adamax", {"lr": 2e-3}),
    "neck": ("RAdam", {"lr": 1e-2, "decoupled_weight_decay": True}),
    "head": ("ASGD", {"lr": 1e-2, "t0": 5}),
}
torch.manual_seed(11)
model = nn.Sequential()
for name in CONFIG:
    model.add_module(name, nn.Linear(6, 6))
optimizers = {
    name: getattr(torch.optim, kind)(model.get_submodule(name).parameters(), **options)
    for name, (kind, options) in CONFIG.items()
}
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=optimizers, every="1 steps")
start = ck.resume()
for step in range(start, idiom.STEPS):
    x = torch.randn(5, 6)
    loss = (model(x) - x.flip(1)).pow(2).mean()
    model.zero_grad()
    loss.backward()
    for opt in optimizers.values():
        opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
