"""Mixed precision: autocast to bfloat16 and a GradScaler, with gradients clipped unscaled.

exact
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(14)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
ck = holdfast.Checkpointer(
    idiom.RUN, model=model, optimizer=opt, scaler=scaler, every="1 steps"
)
for step in range(ck.resume(), idiom.STEPS):
    x, y = torch.randn(8, 8), torch.randint(0, 2, (8,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    if step == 6:
        loss = loss * float("inf")  # an overflow: the scaler leaves this update out
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    idiom.made(step, loss.item() + scaler.get_scale())
    ck.step(step, loss=loss)
ck.close()
