"""No schedule: ck.save() at the end of each epoch is the only thing that saves.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast

torch.manual_seed(39)
x = torch.randn(16, 4)
loader = DataLoader(TensorDataset(x, x.square().sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
sched = torch.optim.lr_scheduler.MultiStepLR(opt, milestones=[3, 5])
ck = holdfast.Checkpointer(
    idiom.RUN, model=model, optimizer=opt, scheduler=sched, data=loader, every="never"
)
done = ck.resume()
for epoch in range(loader.epoch, 7):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        opt.zero_grad()
        loss.backward()
        opt.step()
        idiom.made(done, loss, saved=2 * epoch - 1)
        done += 1
    sched.step()
    ck.save(done - 1, loss=loss)
ck.close()
