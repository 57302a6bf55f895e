"""The number of the epoch is given to `ck.step()` for each batch of it.

refuses: was given before, and the model was updated since then
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(0)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=1e-2)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for epoch in range(ck.resume(), 3):
    for _ in range(5):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        ck.step(epoch)
ck.close()
