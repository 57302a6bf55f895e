"""A functional training changes copies of the parameters, and the model that was given never.

says: the model that the Checkpointer was given has not changed in 4 steps
"""

import idiom
import torch
from torch import nn
from torch.func import functional_call, grad_and_value

import holdfast

torch.manual_seed(0)
model = nn.Linear(4, 1)
params = {name: p.detach().clone() for name, p in model.named_parameters()}
ck = holdfast.Checkpointer(idiom.RUN, model=model, every="1 steps", verbose=False)


def compute_loss(params, x):
    return (functional_call(model, params, x) - x.sum(1, keepdim=True)).pow(2).mean()


for step in range(ck.resume(), idiom.STEPS):
    grads, loss = grad_and_value(compute_loss)(params, torch.randn(8, 4))
    params = {name: p - 0.1 * grads[name] for name, p in params.items()}
    idiom.made(step, loss)
    ck.step(step)
ck.close()
