"""DataLoader(generator=g) with a seed of its own, and a new seed for the model in each epoch.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast

torch.manual_seed(35)
x = torch.randn(20, 4)
g = torch.Generator()
g.manual_seed(99)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=5, shuffle=True,
                    generator=g)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.02)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps")
step = ck.resume()
while step < idiom.STEPS:
    for inputs, targets in loader:
        if step % len(loader) == 0:
            torch.manual_seed(1000 + loader.epoch)
        loss = nn.functional.mse_loss(model(inputs), targets)
        opt.zero_grad()
        loss.backward()
        opt.step()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
        if step == idiom.STEPS:
            break
ck.close()
