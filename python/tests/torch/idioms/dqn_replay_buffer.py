"""DQN: a replay buffer with a state_dict, a target network, and epsilon-greedy actions.

exact
"""

import random

import idiom
import torch
from torch import nn

import holdfast


class Replay:
    def __init__(self, size):
        self.rows, self.at, self.full = torch.zeros(size, 6), 0, False

    def add(self, row):
        self.rows[self.at] = torch.tensor(row)
        self.at = (self.at + 1) % len(self.rows)
        self.full = self.full or self.at == 0

    def sample(self, number):
        filled = len(self.rows) if self.full else self.at
        return self.rows[torch.randint(0, filled, (number,))]

    def state_dict(self):
        return {"rows": self.rows, "at": self.at, "full": self.full}

    def load_state_dict(self, state):
        self.rows.copy_(state["rows"])
        self.at, self.full = state["at"], state["full"]


random.seed(37)
torch.manual_seed(37)
q, target = (nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2)) for _ in range(2))
target.load_state_dict(q.state_dict())
opt = torch.optim.Adam(q.parameters(), lr=1e-2)
replay = Replay(10)
ck = holdfast.Checkpointer(
    idiom.RUN, model={"q": q, "target": target}, optimizer=opt, objects={"replay": replay},
    every="1 steps",
)
ck.values["state"] = [0.1, -0.1]
for step in range(ck.resume(), idiom.STEPS):
    here = ck.values["state"]
    explore = random.random() < 0.5
    action = random.randrange(2) if explore else int(q(torch.tensor(here)).argmax())
    there = [0.9 * here[0] + (0.1 if action else -0.1), 0.9 * here[1] + here[0] * 0.2]
    replay.add([*here, float(action), *there, -abs(there[0])])
    ck.values["state"] = there
    rows = replay.sample(4)
    best = target(rows[:, 3:5]).amax(1).detach()
    chosen = q(rows[:, :2]).gather(1, rows[:, 2:3].long()).squeeze(1)
    loss = nn.functional.smooth_l1_loss(chosen, rows[:, 5] + 0.9 * best)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 4 == 3:
        target.load_state_dict(q.state_dict())
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
