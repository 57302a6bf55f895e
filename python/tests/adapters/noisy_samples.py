"""Samples of the tests that look at which process reads."""

import torch


class Samples(torch.utils.data.Dataset):
    """Samples that have random noise if the training process itself reads them."""

    def __init__(self, noise):
        self.noise = noise

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.full((4,), index / 9) + (torch.rand(4) if self.noise else 0)
