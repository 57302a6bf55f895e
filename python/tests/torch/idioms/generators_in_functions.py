"""An environment and a given replay buffer draw from generators of their own, all inside of main().

exact
"""

import idiom
import numpy as np
import torch
from torch import nn

import holdfast


class Environment:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def observe(self):
        return self.rng.normal(size=4).tolist()


class Replay:
    def __init__(self, seed):
        self.rows, self.rng = [], np.random.default_rng(seed)

    def sample(self, count):
        return torch.tensor([self.rows[k] for k in self.rng.integers(0, len(self.rows), count)])

    def state_dict(self):
        return {"rows": self.rows}

    def load_state_dict(self, state):
        self.rows = list(state["rows"])


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    environment, replay = Environment(1), Replay(2)
    ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, objects={"replay": replay},
                               every="1 steps")
    for step in range(ck.resume(), idiom.STEPS):
        replay.rows.append(environment.observe())
        x = replay.sample(4)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
    ck.close()


main()
