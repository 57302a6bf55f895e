"""ReduceLROnPlateau by the validation loss, which another loader gives after each epoch.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import holdfast

torch.manual_seed(12)
x = torch.randn(36, 4)
data = TensorDataset(x, x.sum(1, keepdim=True) + 0.3 * torch.randn(36, 1))
train_set, valid_set = random_split(data, [24, 12], generator=torch.Generator().manual_seed(3))
train = DataLoader(train_set, batch_size=12, shuffle=True)
valid = DataLoader(valid_set, batch_size=4)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=1, threshold=0.5)
ck = holdfast.Checkpointer(
    idiom.RUN, model=model, optimizer=opt, scheduler=sched, data=train, every="1 steps"
)
step = ck.resume()
for epoch in range(train.epoch, 7):
    model.train()
    for inputs, targets in train:
        loss = nn.functional.l1_loss(model(inputs), targets)
        opt.zero_grad()
        loss.backward()
        opt.step()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
    model.eval()
    with torch.no_grad():
        errors = [nn.functional.l1_loss(model(a), b, reduction="sum") for a, b in valid]
    sched.step(torch.stack(errors).sum() / len(valid_set))
ck.close()
