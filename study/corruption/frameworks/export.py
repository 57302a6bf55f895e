"""Writes what another framework needs to continue the training of examples/train_digits.py.

    python study/corruption/frameworks/export.py base.pt start.npz

start.npz has the tensors of the model by their names in base.pt, the momentum of each parameter as
momentum.NAME, and the samples of each of the 40 steps that follow. It needs PyTorch; who reads the
file needs only NumPy.
"""

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))
import train_digits

STEPS, BATCH = 40, 32


def main(checkpoint: str, out: str) -> None:
    loaded = torch.load(checkpoint)
    model = train_digits.Digits()
    arrays = {f"model.{name}": tensor for name, tensor in loaded["model"].items()}
    for number, (name, _) in enumerate(model.named_parameters()):
        arrays[f"momentum.{name}"] = loaded["optimizer"]["state"][number]["momentum_buffer"]
    begin = loaded["step"]
    batches = [train_digits.batch_of(begin + step, BATCH) for step in range(STEPS)]
    np.savez(out, batches=torch.stack(batches).numpy(),
             **{name: tensor.numpy() for name, tensor in arrays.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
