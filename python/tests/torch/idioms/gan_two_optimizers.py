"""A GAN: generator and discriminator, each with an optimizer of its own, all given.

exact
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(19)
generator = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
opt_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
ck = holdfast.Checkpointer(
    idiom.RUN,
    model={"generator": generator, "discriminator": discriminator},
    optimizer={"generator": opt_g, "discriminator": opt_d},
    every="1 steps",
)
for step in range(ck.resume(), idiom.STEPS):
    real = torch.randn(8, 2) * 0.5 + 1
    fake = generator(torch.randn(8, 3))
    opt_d.zero_grad()
    loss_d = bce(discriminator(real), torch.ones(8, 1))
    loss_d = loss_d + bce(discriminator(fake.detach()), torch.zeros(8, 1))
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    loss_g = bce(discriminator(fake), torch.ones(8, 1))
    loss_g.backward()
    opt_g.step()
    idiom.made(step, loss_d + loss_g)
    ck.step(step, loss=loss_g)
ck.close()
