"""A variational autoencoder that draws in the forward pass, with a weight that grows by step.

exact
"""

import idiom
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

import holdfast


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(10, 6), nn.Linear(3, 10)

    def forward(self, x):
        mean, log_scale = self.encoder(x).chunk(2, dim=1)
        posterior = Normal(mean, log_scale.exp())
        rebuilt = self.decoder(posterior.rsample())
        prior = Normal(torch.zeros_like(mean), torch.ones_like(mean))
        return (rebuilt - x).pow(2).sum(1).mean(), kl_divergence(posterior, prior).sum(1).mean()


torch.manual_seed(43)
torch.set_num_threads(2)
data = torch.randn(60, 10)
model = Vae()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    x = data[torch.randperm(60)[:12]]
    reconstruction, divergence = model(x)
    loss = reconstruction + min(1.0, step / 10) * divergence
    opt.zero_grad()
    loss.backward()
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
