"""Embeddings with sparse gradients: Adagrad for the bags, SparseAdam for the table.

exact
"""

import idiom
import torch
from torch import nn

import holdfast

torch.manual_seed(5)
torch.sparse.check_sparse_tensor_invariants.disable()  # else torch warns that they are not checked


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(20, 6, sparse=True)
        self.history = nn.EmbeddingBag(30, 6, sparse=True, mode="sum")

    def forward(self, users, items, offsets):
        return (self.users(users) * self.history(items, offsets)).sum(1)


model = Recommender()
optimizers = [
    torch.optim.SparseAdam(model.users.parameters(), lr=1e-2),
    torch.optim.Adagrad(model.history.parameters(), lr=0.1),
]
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=optimizers, every="1 steps")
for step in range(ck.resume(), idiom.STEPS):
    users, items = torch.randint(0, 20, (4,)), torch.randint(0, 30, (12,))
    clicked = torch.randint(0, 2, (4,)).float()
    scores = model(users, items, torch.tensor([0, 3, 6, 9]))
    loss = nn.functional.binary_cross_entropy_with_logits(scores, clicked)
    for opt in optimizers:
        opt.zero_grad()
    loss.backward()
    for opt in optimizers:
        opt.step()
    idiom.made(step, loss)
    ck.step(step, loss=loss)
ck.close()
