"""As nanoGPT does it: the next batch is drawn at random before the update of this one.

silent
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
text = torch.randn(300, 4)


def draw():
    begin = int(torch.randint(0, 292, ()))
    return text[begin:begin + 8]


ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
start = ck.resume()
x = draw()
for step in range(start, idiom.STEPS):
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    x = draw()
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
