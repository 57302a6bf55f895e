"""Running means and a history of one's own, given as objects with a state_dict.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import TensorDataset

import holdfast


class Meter:
    def __init__(self):
        self.mean, self.seen, self.history = 0.0, 0, []

    def update(self, value, number):
        self.mean += (value - self.mean) * number / (self.seen + number)
        self.seen += number
        self.history.append((self.seen, value))

    def state_dict(self):
        return vars(self)

    def load_state_dict(self, state):
        vars(self).update(state)


torch.manual_seed(38)
x = torch.randn(33, 4)
loader = holdfast.data.loader(TensorDataset(x, (x > 0).float()), batch_size=6, last="drop")
model = nn.Linear(4, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.5)
meters = {"loss": Meter(), "accuracy": Meter()}
ck = holdfast.Checkpointer(
    idiom.RUN, model=model, optimizer=opt, data=loader, objects={"meters": meters},
    every="1 steps",
)
for step, (inputs, targets) in enumerate(loader, ck.resume()):
    logits = model(inputs)
    loss = nn.functional.binary_cross_entropy_with_logits(logits, targets)
    opt.zero_grad()
    loss.backward()
    opt.step()
    meters["loss"].update(loss.item(), len(inputs))
    meters["accuracy"].update(((logits > 0) == targets.bool()).float().mean().item(), len(inputs))
    idiom.made(step, meters["loss"].mean + meters["accuracy"].mean)
    ck.step(step, loss=loss)
    if step + 1 == idiom.STEPS:
        break
ck.close()
