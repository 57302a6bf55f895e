"""A GAN whose Checkpointer was given both models and the optimizer of one of them.

says: optimizer: Adam takes part in the training, and the Checkpointer was not given it
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(0)
maker, judge = nn.Linear(4, 8), nn.Linear(8, 1)
opt_maker = torch.optim.AdamW(maker.parameters(), lr=1e-2)
opt_judge = torch.optim.Adam(judge.parameters(), lr=1e-2)
ck = holdfast.Checkpointer(idiom.RUN, model={"maker": maker, "judge": judge}, optimizer=opt_maker,
                           every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    made = maker(torch.randn(8, 4))
    loss = judge(torch.randn(8, 8)).mean() - judge(made.detach()).mean()
    opt_judge.zero_grad()
    loss.backward()
    opt_judge.step()
    opt_maker.zero_grad()
    judge(made).mean().backward()
    opt_maker.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
