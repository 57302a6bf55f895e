"""The training of bits.py in PyTorch, and ways to resume it."""

from pathlib import Path
from typing import Any

import torch
from bits import BATCH, DROPOUT, EPOCH, MOMENTUM, RATE, RESUME, SEED, STEPS, digest, digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Training:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(SEED)
        self.model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                                   nn.Dropout(DROPOUT), nn.Linear(512, 10))  # fmt: skip
        self.optimizer = torch.optim.SGD(self.model.parameters(), RATE, momentum=MOMENTUM)
        pictures, shown = digits()
        self.data = TensorDataset(torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous(),
                                  torch.from_numpy(shown).long())  # fmt: skip

    def loader(self) -> DataLoader[Any]:
        return DataLoader(self.data, BATCH, shuffle=True)

    def step(self, pictures: torch.Tensor, shown: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(pictures), shown).backward()
        self.optimizer.step()

    def digest(self) -> str:
        return digest(tensor.detach().numpy() for tensor in (*self.model.parameters(), *self.model.buffers()))


def train(way: str, folder: Path, cut: int) -> str | None:
    return train_with_holdfast(folder, cut) if way == "holdfast" else train_by_hand(folder, cut, set(way.split("+")[1:]))


def train_by_hand(folder: Path, cut: int, saved: set[str]) -> str | None:
    """As the tutorials do, with what is in `saved` besides: "generator", "position"."""
    training, done = Training(), 0
    kept: dict[str, Any] = {}
    if cut == RESUME:
        kept = torch.load(folder / "last.pt", weights_only=True)
        training.model.load_state_dict(kept["model"])
        training.optimizer.load_state_dict(kept["optimizer"])
        done = kept["step"]
    while done < STEPS:
        skipped = done % EPOCH if kept and "position" in saved else 0
        if kept and "generator" in saved:
            torch.set_rng_state(kept["epoch" if skipped else "generator"])
        begun = torch.get_rng_state()
        for number, batch in enumerate(training.loader()):
            if number < skipped:
                continue
            if skipped and number == skipped:
                torch.set_rng_state(kept["generator"])
            training.step(*batch)
            done += 1
            if done == cut:
                torch.save({"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict(),
                            "step": done, "epoch": begun, "generator": torch.get_rng_state()},
                           new(folder) / "last.pt")  # fmt: skip
                return None
            if done == STEPS:
                break
        kept = {}
    return training.digest()


def train_with_holdfast(folder: Path, cut: int) -> str | None:
    import holdfast

    training = Training()
    loader = holdfast.data.resumable(training.loader())
    if not cut:
        for _ in range(STEPS // EPOCH):
            for batch in loader:
                training.step(*batch)
        return training.digest()
    with holdfast.Checkpointer(new(folder) / "run", model=training.model, optimizer=training.optimizer, data=loader,
                               every=f"{EPOCH // 2} steps") as checkpointer:  # fmt: skip
        done = checkpointer.resume()
        while done < STEPS:
            for batch in loader:
                training.step(*batch)
                checkpointer.step(done)
                done += 1
                if done == cut:
                    return None
    return training.digest()


def new(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def first_step() -> None:
    training = Training()
    training.step(*next(iter(training.loader())))
