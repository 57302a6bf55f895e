"""A convolutional net in channels_last memory format, with BatchNorm, Dropout2d and pooling.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast

torch.manual_seed(22)
model = nn.Sequential(
    nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.2),
    nn.Conv2d(4, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5),
).to(memory_format=torch.channels_last)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
images, labels = torch.rand(28, 3, 8, 8), torch.randint(0, 5, (28,))
loader = DataLoader(TensorDataset(images, labels), batch_size=4, shuffle=True)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps")
step = ck.resume()
for _ in range(loader.epoch, 2):
    for image, label in loader:
        image = image.to(memory_format=torch.channels_last)
        loss = nn.functional.cross_entropy(model(image), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
ck.close()
