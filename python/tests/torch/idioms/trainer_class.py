"""A class Trainer with methods for a step, an epoch and an evaluation.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast


class Trainer:
    def __init__(self, model, train, valid, epochs):
        self.model, self.train_data, self.valid_data, self.epochs = model, train, valid, epochs
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, epochs)
        self.checkpoints = holdfast.Checkpointer(
            idiom.RUN, model=model, optimizer=self.optimizer, scheduler=self.scheduler, data=train,
            every="1 steps",
        )
        self.checkpoints.values["best"] = 0.0

    def fit(self):
        self.step = self.checkpoints.resume()
        for _ in range(self.train_data.epoch, self.epochs):
            self.model.train()
            for batch in self.train_data:
                self.training_step(*batch)
            self.scheduler.step()
            self.checkpoints.values["best"] = max(self.checkpoints.values["best"], self.evaluate())
        self.checkpoints.close()

    def training_step(self, x, y):
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        idiom.made(self.step, loss)
        self.checkpoints.step(self.step, loss=loss)
        self.step += 1

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        right = sum((self.model(x).argmax(1) == y).sum().item() for x, y in self.valid_data)
        return right / len(self.valid_data.dataset)


torch.manual_seed(40)
x = torch.randn(22, 4)
data = TensorDataset(x, (x.sum(1) > 0).long())
net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))
Trainer(net, DataLoader(data, 11, shuffle=True), DataLoader(data, 22), epochs=7).fit()
