"""holdfast.data.loader with epochs=2: one `for` over all epochs, which joins the last batches.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import TensorDataset

import holdfast

torch.manual_seed(32)
x = torch.randn(28, 4)
loader = holdfast.data.loader(
    TensorDataset(x, x.median(1, keepdim=True).values), batch_size=4, seed=5, epochs=2, last="join"
)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.RMSprop(model.parameters(), lr=1e-2)
sched = torch.optim.lr_scheduler.CyclicLR(opt, base_lr=1e-3, max_lr=1e-2, step_size_up=4,
                                          cycle_momentum=False)
ck = holdfast.Checkpointer(
    idiom.RUN, model=model, optimizer=opt, scheduler=sched, data=loader, every="1 steps"
)
for step, (inputs, targets) in enumerate(loader, ck.resume()):
    loss = nn.functional.smooth_l1_loss(model(inputs), targets)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
