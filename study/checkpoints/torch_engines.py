"""torch.save, safetensors, DCP, torch_checkpointing and Holdfast, as their manuals say.

Each of them over one name, as `last.pt`, and numbered by steps, where users do both.
"""

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from engine import Engine, Load, Save, Session
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from states import FIRST, OlderIsWhole, State, blank, is_previous
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

    def save(step: int, held: Tensors, folder: Path) -> None:
        write(held, folder / name)

    def load(folder: Path) -> State | None:
        return arrays(read(folder / name)) if (folder / name).exists() else None

    return save, load


def numbered(name: str, write: Write, read: Read) -> tuple[Save, Load]:
    """Each save has a name of its own, and the newest name is loaded."""

    def save(step: int, held: Tensors, folder: Path) -> None:
        write(held, folder / name.format(step))

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
    into = tensors(blank())
    dcp.load(into, checkpoint_id=path, no_dist=True)
    return into


def parts_of(value: Tensors) -> Tensors:
    """This rank's share of each tensor, if its first axis can be divided by the ranks."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh, shards = init_device_mesh("cpu", (world,)), [Shard(0)]
    return {name: DTensor.from_local(tensor.chunk(world)[rank], mesh, shards, run_check=False)
            if tensor.ndim and tensor.shape[0] % world == 0 else tensor for name, tensor in value.items()}  # fmt: skip


def write_dcp_part(value: Tensors, path: Path) -> None:
    dcp.save(parts_of(value), checkpoint_id=path)


def save_dcp_part(step: int, held: Tensors, folder: Path) -> None:
    write_dcp_part(held, folder / "last")


# Holdfast


def save_holdfast(step: int, held: Tensors, folder: Path, **writing: bool) -> None:
    import holdfast

    with holdfast.Saver(folder / "run", keep=2, writing=holdfast.Writing(**writing)) as saver:
        saver.save(step, held).durable()


@contextmanager
def train_with_holdfast(held: Tensors, folder: Path) -> Iterator[Session]:
    import holdfast

    with holdfast.Saver(folder / "run", keep=2) as saver:
        newest: list[holdfast.SaveHandle] = []

        def save(step: int) -> None:
            newest[:] = [saver.save(step, held)]

        def wait() -> None:
            for handle in newest:
                handle.captured()

        def finish() -> None:
            for handle in newest:
                handle.durable()

        yield Session(save, wait, finish)


def save_holdfast_part(step: int, held: Tensors, folder: Path) -> None:
    import holdfast

    model = torch.nn.Module()
    for name, tensor in parts_of(held).items():
        model.register_buffer(name, tensor)
    with holdfast.Checkpointer(folder / "run", model=model, every="never", failures=holdfast.Failures(signals=False),
                               verbose=False) as checkpointer:  # fmt: skip
        checkpointer.save(step).durable()


def load_holdfast(folder: Path) -> State | None:
    import holdfast

    if not (folder / "run" / "holdfast.json").exists():
        return None
    try:
        return arrays(holdfast.load(folder / "run"))
    except holdfast.NotFoundError:
        return None


def load_one_of_holdfast(folder: Path, name: str) -> Any:
    import holdfast

    return holdfast.open(folder / "run").read(name)


# torch_checkpointing, which writes into a folder tmp_NAME and renames that


def make_checkpointing(kind: str) -> Any:
    from torch_checkpointing import CheckpointManager
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    config = getattr(CheckpointManager.Config, f"with_{kind}_save")()
    # Its O_DIRECT writes fail if the size of a tensor is not a multiple of the block size.
    config.storage_config = LocalFileSystemStorageConfig(use_direct_io=False)
    return config.build()


def read_checkpointing(path: Path) -> Tensors:
    into = tensors(blank())
    manager = make_checkpointing("sync")
    manager.load(str(path), into={"state": into})
    manager.close()
    return into


def write_checkpointing(held: Tensors, path: Path) -> None:
    manager = make_checkpointing("sync")
    manager.save(str(path), {"state": held})
    manager.close()


@contextmanager
def train_with_checkpointing(held: Tensors, folder: Path) -> Iterator[Session]:
    manager = make_checkpointing("async")
    futures: list[Any] = []

    def finish() -> None:
        for future in futures:
            future.result()
        for older in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-1]:
            shutil.rmtree(older)  # it keeps all

    def save(step: int) -> None:
        for future in futures:
            future.result()
        futures[:] = [manager.save(str(folder / f"step-{step}"), {"state": held})]

    def wait() -> None:
        with manager.lock():
            pass

    yield Session(save, wait, finish)
    finish()
    manager.close()


# What is left out to see what it costs


def without_crc(step: int, held: Tensors, folder: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(held, folder / "last.pt")
    finally:
        torch.serialization.set_crc32_options(True)


def without_fsync(step: int, held: Tensors, folder: Path) -> None:
    dcp.save(held, storage_writer=dcp.FileSystemWriter(folder / "last", sync_files=False), no_dist=True)


def without_copy(step: int, held: Tensors, folder: Path) -> None:
    """The bytes go to the file from where they are, which is a save's least work."""
    with (folder / "last").open("wb", buffering=0) as file:
        for tensor in held.values():
            file.write(tensor.numpy().data)


def without_direct(step: int, held: Tensors, folder: Path) -> None:
    save_holdfast(step, held, folder, direct=False)


def load_mapped(folder: Path, name: str) -> Any:
    return torch.load(folder / "last.pt", weights_only=True, mmap=True)[name].clone()


def load_one_safe(folder: Path, name: str) -> Any:
    with safe_open(folder / "last.safetensors", "pt") as file:
        return file.get_tensor(name)


def load_one_dcp(folder: Path, name: str) -> Any:
    into = {name: tensors(blank())[name]}
    dcp.load(into, checkpoint_id=folder / "last", no_dist=True)
    return into[name]


def why_no_checkpointing() -> str:
    return "" if importlib.util.find_spec("torch_checkpointing") else "torch_checkpointing is not installed"


def engine(name: str, package: str, both: tuple[Save, Load], **more: Any) -> Engine:
    return Engine(name, package, tensors, *both, **more)


ENGINES = [
    engine("torch.save", "torch", over_one_name("last.pt", torch.save, read), load_one=load_mapped,
           without={"CRC": without_crc, "container": without_copy}),
    engine("torch.save-numbered", "torch", numbered("step-{}.pt", torch.save, read)),
    engine("torch.save-rename", "torch", over_one_name("last.pt", write_and_rename, read)),
    engine("torch.save-legacy", "torch", over_one_name("last.pt", write_legacy, read)),
    engine("safetensors", "safetensors", over_one_name("last.safetensors", save_file, load_file), load_one=load_one_safe),
    engine("safetensors-numbered", "safetensors", numbered("step-{}.safetensors", save_file, load_file)),
    engine("dcp", "torch", over_one_name("last", write_dcp, read_dcp), load_one=load_one_dcp,
           save_part=save_dcp_part, without={"fsync": without_fsync}),
    engine("dcp-numbered", "torch", numbered("step-{}", write_dcp, read_dcp)),
    engine("dcp-2-ranks", "torch", over_one_name("last", write_dcp_part, read_dcp), ranks=2),
    engine("torch_checkpointing", "torch_checkpointing", numbered("step-{}", write_checkpointing, read_checkpointing),
           background=train_with_checkpointing, why_not=why_no_checkpointing()),
    engine("holdfast", "holdfast", (save_holdfast, load_holdfast), load_one=load_one_of_holdfast,
           save_part=save_holdfast_part, without={"direct writing": without_direct}, background=train_with_holdfast),
]  # fmt: skip
