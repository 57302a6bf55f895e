"""Truncated backpropagation: an LSTM's hidden state is carried from batch to batch.

exact
"""

import idiom
import torch
from torch import nn

import holdfast


class Carried:
    """The hidden state that the next batch begins with."""

    def __init__(self):
        self.h, self.c = torch.zeros(1, 4, 8), torch.zeros(1, 4, 8)

    def state_dict(self):
        return {"h": self.h, "c": self.c}

    def load_state_dict(self, state):
        self.h, self.c = state["h"], state["c"]


torch.manual_seed(6)
text = torch.randint(0, 11, (4, 14 * 5 + 1))
model = nn.ModuleDict({"embed": nn.Embedding(11, 8), "rnn": nn.LSTM(8, 8, batch_first=True),
                       "head": nn.Linear(8, 11)})
opt = torch.optim.RMSprop(model.parameters(), lr=1e-2, centered=True, momentum=0.5)
carried = Carried()
ck = holdfast.Checkpointer(
    idiom.RUN, model=model, optimizer=opt, objects={"hidden": carried}, every="1 steps"
)
for step in range(ck.resume(), idiom.STEPS):
    part = text[:, step * 5 : step * 5 + 6]
    out, (h, c) = model["rnn"](model["embed"](part[:, :-1]), (carried.h, carried.c))
    carried.h, carried.c = h.detach(), c.detach()
    loss = nn.functional.cross_entropy(model["head"](out).flatten(0, 1), part[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
