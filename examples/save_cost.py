"""How long training waits for a save, with torch.save and with Holdfast, on this machine.

    python examples/save_cost.py FOLDER [--megabytes 400] [--saves 5]

A small loop of matrix products stands for forward and backward; AdamW updates a model of the given
size. Every third step is saved. The time is what the training loop waits for: the call that saves,
and, with Holdfast, also the moment before the next update.
"""

import argparse
import shutil
import statistics
import time
from pathlib import Path

import torch
from torch import nn

import holdfast


class Training:
    def __init__(self, megabytes: int) -> None:
        rows = megabytes * 2**20 // 3 // 4 // 1024 // 8  # fp32, with two moments for each parameter
        self.model = nn.ParameterList(nn.Parameter(torch.randn(rows, 1024)) for _ in range(8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        for parameter in self.model:
            parameter.grad = torch.randn_like(parameter)
        self.small = torch.randn(384, 384)
        self.optimizer.step()

    def compute(self) -> None:
        for _ in range(300):
            self.small = torch.tanh(self.small @ self.small / 20)

    def update(self) -> None:
        self.compute()
        self.optimizer.step()


def with_torch_save(training: Training, folder: Path, saves: int) -> list[float]:
    waited = []
    for number in range(saves):
        start = time.perf_counter()
        torch.save({"model": training.model.state_dict(),
                    "optimizer": training.optimizer.state_dict()}, folder / f"{number}.pt")
        waited.append(time.perf_counter() - start)
        for _ in range(3):
            training.update()
    return waited


def with_holdfast(training: Training, folder: Path, saves: int) -> list[float]:
    waited = []
    with holdfast.Checkpointer(folder, model=training.model, optimizer=training.optimizer,
                               every="3 steps", keep=2, verbose=False) as ck:
        ck.resume()
        for step in range(3 * (saves + 1)):
            before = ck.stall
            ck.step(step)
            training.update()
            if step % 3 == 2:
                waited.append(ck.stall - before)
    return waited[1:]  # without the first, as the buffers are new then


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=int, default=400, help="size of the state")
    parser.add_argument("--saves", type=int, default=5)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    print(f"a save of {options.megabytes} MB makes training wait (median of {options.saves} saves):")
    for name, how in [("torch.save", with_torch_save), ("Holdfast", with_holdfast)]:
        folder = options.folder / name
        folder.mkdir(exist_ok=True)
        waited = how(Training(options.megabytes), folder, options.saves)
        print(f"  {name:12} {1e3 * statistics.median(waited):8.1f} ms", flush=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
