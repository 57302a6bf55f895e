"""holdfast.data.loader with epochs="each" and a persistent worker that augments.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import Dataset

import holdfast


class Augmented(Dataset):
    def __init__(self):
        self.x = torch.randn(14, 4)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + 0.1 * torch.randn(4), self.x[index].sum()


torch.manual_seed(31)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.8)
loader = holdfast.data.loader(
    Augmented(), batch_size=4, epochs="each", num_workers=1, persistent_workers=True
)
ck = holdfast.Checkpointer(
    idiom.RUN, model=model, optimizer=opt, scheduler=sched, data=loader, every="1 steps"
)
step = ck.resume()
while step < idiom.STEPS:
    for x, y in loader:
        loss = (model(x).squeeze(1) - y).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
        if step == idiom.STEPS:
            break
    sched.step()
ck.close()
