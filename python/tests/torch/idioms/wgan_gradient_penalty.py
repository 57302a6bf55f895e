"""A WGAN with gradient penalty: the critic makes three updates for one of the generator.

exact
"""

import idiom
import torch
from torch import autograd, nn

import holdfast

torch.manual_seed(20)
gen = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 2))
critic = nn.Sequential(nn.Linear(2, 12), nn.Softplus(), nn.Linear(12, 1))
opt_gen = torch.optim.RMSprop(gen.parameters(), lr=1e-3)
opt_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
ck = holdfast.Checkpointer(
    idiom.RUN, model={"gen": gen, "critic": critic}, optimizer=[opt_gen, opt_critic],
    every="1 steps",
)


def penalty(real, fake):
    mixed = torch.lerp(real, fake, torch.rand(len(real), 1)).requires_grad_()
    (slope,) = autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    return (slope.norm(dim=1) - 1).pow(2).mean()


for step in range(ck.resume(), idiom.STEPS):
    for _ in range(3):
        real = torch.randn(6, 2).sign() + 0.1 * torch.randn(6, 2)
        fake = gen(torch.randn(6, 2)).detach()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(real, fake)
        opt_critic.zero_grad()
        loss.backward()
        opt_critic.step()
    opt_gen.zero_grad()
    (-critic(gen(torch.randn(6, 2))).mean()).backward()
    opt_gen.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
