"""StepLR once for each epoch, behind the loop over the batches, which drops the last one.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast


def main():
    torch.manual_seed(13)
    images, labels = torch.rand(22, 1, 6, 6), torch.randint(0, 4, (22,))
    loader = DataLoader(TensorDataset(images, labels), 5, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    ck = holdfast.Checkpointer(
        idiom.RUN, model=model, optimizer=optimizer, scheduler=scheduler, data=loader,
        every="1 steps",
    )
    step = ck.resume()
    for _ in range(loader.epoch, 4):
        for image, label in loader:
            if step >= idiom.STEPS:
                return ck.close()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(image), label)
            loss.backward()
            optimizer.step()
            idiom.made(step, loss)
            ck.step(step, loss=loss)
            step += 1
        scheduler.step()


if __name__ == "__main__":
    main()
