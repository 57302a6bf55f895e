"""torch.save, safetensors, DCP, torch_checkpointing and Holdfast, as their manuals say.

Each of them over one name, as `last.pt`, and numbered by steps, where users do both.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from engine import Engine, Load, Save
from safetensors.torch import load_file, save_file
from states import FIRST, OlderIsWhole, State, is_previous, make_state
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

Tensors = dict[str, torch.Tensor]
Write = Callable[[Tensors, Path], Any]
Read = Callable[[Path], Tensors]


def tensors(state: State) -> Tensors:
    return {name: torch.from_numpy(array) for name, array in state.items()}


def arrays(loaded: Tensors) -> State:
    return {name: torch.as_tensor(tensor).numpy() for name, tensor in loaded.items()}


def over_one_name(name: str, write: Write, read: Read) -> tuple[Save, Load]:
    """Each save replaces the one before."""

    def save(step: int, state: State, folder: Path) -> None:
        write(tensors(state), folder / name)

    def load(folder: Path) -> State | None:
        return arrays(read(folder / name)) if (folder / name).exists() else None

    return save, load


def numbered(name: str, write: Write, read: Read) -> tuple[Save, Load]:
    """Each save has a name of its own, and the newest name is loaded."""

    def save(step: int, state: State, folder: Path) -> None:
        write(tensors(state), folder / name.format(step))

    def load(folder: Path) -> State | None:
        found = sorted(folder.glob(name.format("*")))
        if not found:
            return None
        try:
            return arrays(read(found[-1]))
        except BaseException as error:  # DCP's is no Exception
            if is_previous(lambda: arrays(read(folder / name.format(FIRST)))):
                raise OlderIsWhole(str(error)) from error
            raise

    return save, load


def write_legacy(value: Tensors, path: Path) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False)


def write_and_rename(value: Tensors, path: Path) -> None:
    torch.save(value, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)


def read(path: Path) -> Tensors:
    return torch.load(path, weights_only=True)


def write_dcp(value: Tensors, path: Path) -> None:
    dcp.save(value, checkpoint_id=path, no_dist=True)


def read_dcp(path: Path) -> Tensors:
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors(make_state(FIRST)).items()}
    dcp.load(into, checkpoint_id=path, no_dist=True)
    return into


def write_dcp_part(value: Tensors, path: Path) -> None:
    """One of two ranks saves its half of each tensor."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    shards = [Shard(0)]
    rank, world = dist.get_rank(), dist.get_world_size()
    parts = {name: DTensor.from_local(tensor.chunk(world)[rank], mesh, shards, run_check=False)
             if tensor.shape[0] % world == 0 else tensor for name, tensor in value.items()}  # fmt: skip
    dcp.save(parts, checkpoint_id=path)


def save_holdfast(step: int, state: State, folder: Path) -> None:
    import holdfast

    with holdfast.Saver(folder / "run", keep=2) as saver:
        saver.save(step, tensors(state)).durable()


def load_holdfast(folder: Path) -> State | None:
    import holdfast

    if not (folder / "run" / "holdfast.json").exists():
        return None
    try:
        return arrays(holdfast.load(folder / "run"))
    except holdfast.NotFoundError:
        return None


ENGINES = [
    Engine("torch.save", "torch", *over_one_name("last.pt", torch.save, read)),
    Engine("torch.save-numbered", "torch", *numbered("step-{}.pt", torch.save, read)),
    Engine("torch.save-rename", "torch", *over_one_name("last.pt", write_and_rename, read)),
    Engine("torch.save-legacy", "torch", *over_one_name("last.pt", write_legacy, read)),
    Engine("safetensors", "safetensors", *over_one_name("last.safetensors", save_file, load_file)),
    Engine("safetensors-numbered", "safetensors", *numbered("step-{}.safetensors", save_file, load_file)),
    Engine("dcp", "torch", *over_one_name("last", write_dcp, read_dcp)),
    Engine("dcp-numbered", "torch", *numbered("step-{}", write_dcp, read_dcp)),
    Engine("dcp-2-ranks", "torch", *over_one_name("last", write_dcp_part, read_dcp), ranks=2),
    Engine("holdfast", "holdfast", save_holdfast, load_holdfast),
]
