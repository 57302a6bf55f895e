"""Stochastic weight averaging in the second half, with SWALR and update_bn() at the end.

exact
"""

import idiom
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

import holdfast

torch.manual_seed(18)
x = torch.randn(16, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
average = AveragedModel(model)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=7)
swa = SWALR(opt, swa_lr=0.05, anneal_epochs=2)
ck = holdfast.Checkpointer(
    idiom.RUN, model=model, optimizer=opt, scheduler={"cosine": cosine, "swa": swa}, ema=average,
    data=loader, every="1 steps",
)
step = ck.resume()
for epoch in range(loader.epoch, 7):
    for inputs, targets in loader:
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        opt.step()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
    if epoch >= 3:
        average.update_parameters(model)
        swa.step()
    else:
        cosine.step()
ck.close()
update_bn([x], average)
