"""The libraries that save, each used as its manual says, which Holdfast is compared with.

A rival saves a state, which is a map of tensors, into a place, which is a folder of its own.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

State = dict[str, Any]
Made = TypeVar("Made")


class Rival:
    """`save` returns when training may compute on; `updating` is the context of the next update."""

    name = ""
    in_background = False  # it writes while training goes on
    wants_new_places = False  # it does not replace what a place has
    cuts = False  # it takes tensors that are sharded over ranks; others get what the rank has of them

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """`group`: the ranks that save together; None if this process saves alone."""
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)

    def save(self, state: State, place: Path) -> None:
        raise NotImplementedError

    def updating(self) -> AbstractContextManager[Any]:
        """Entering it waits until the state may change."""
        return contextlib.nullcontext()

    def is_written(self) -> bool:
        return True

    def wait(self) -> None:
        """Waits until the last save is written. Whoever wants it synced does that."""

    def load(self, state: State, place: Path) -> None:
        """Fills the tensors of the state."""
        raise NotImplementedError

    def close(self) -> None: ...


class TorchSave(Rival):
    name = "torch.save"
    mapped = False

    def save(self, state: State, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        torch.save(state, place / f"{self.rank}.pt")

    def load(self, state: State, place: Path) -> None:
        fill(state, torch.load(place / f"{self.rank}.pt", mmap=self.mapped, weights_only=True))


class TorchSaveMapped(TorchSave):
    name = "torch.save, mmap"
    mapped = True


class Safetensors(Rival):
    name = "safetensors"

    def save(self, state: State, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_file(tensors_in(state), place / f"{self.rank}.safetensors")

    def load(self, state: State, place: Path) -> None:
        fill(tensors_in(state), safetensors.torch.load_file(place / f"{self.rank}.safetensors"))


class Dcp(Rival):
    name = "DCP save"
    cuts = True

    def save(self, state: State, place: Path) -> None:
        dcp.save(state, checkpoint_id=place, **self._ranks())

    def load(self, state: State, place: Path) -> None:
        dcp.load(state, checkpoint_id=place, **self._ranks())

    def _ranks(self) -> dict[str, Any]:
        return {"no_dist": True} if self.group is None else {"process_group": self.group}


class DcpAsync(Dcp):
    """Its thread sends messages while training does, so it needs a group of its own."""

    name = "DCP async_save"
    in_background = True

    def save(self, state: State, place: Path) -> None:
        self.future = dcp.async_save(state, checkpoint_id=place, **self._ranks())

    def is_written(self) -> bool:
        return self.future.done() and self.future.result() is not self

    def wait(self) -> None:
        self.future.result()


class DcpStaged(DcpAsync):
    """With the stager of DCP that its documentation calls full-featured: copies into pinned memory that is
    shared, on a stream of their own, while training goes on. Without a GPU only the shared memory is left."""

    name = "DCP async_save, DefaultStager"
    options: dict[str, Any] = {}

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(group)
        self.stager = self.make_stager()
        self.staged: Any = None

    def make_stager(self) -> Any:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        gpu = torch.cuda.is_available()
        return DefaultStager(StagingOptions(
            use_pinned_memory=gpu, use_shared_memory=True, use_async_staging=gpu,
            use_non_blocking_copy=gpu))  # fmt: skip

    def save(self, state: State, place: Path) -> None:
        # In torch 2.11 a stager closes itself after its first save, and a second one fails: KeyError: <class 'type'>.
        if self.staged is not None and has_closed_itself(self.stager):
            self.stager.close()
            self.stager = self.make_stager()
        answer = dcp.async_save(state, checkpoint_id=place, async_stager=self.stager, **self.options,
                                **self._ranks())  # fmt: skip
        self.staged = getattr(answer, "staging_completion", answer)
        self.future = getattr(answer, "upload_completion", answer)

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        if self.staged is not None and self.staged is not self.future:
            self.staged.result()
        yield

    def close(self) -> None:
        self.stager.close()


def has_closed_itself(stager: Any) -> bool:
    """Whether a stager of DCP has thrown away what it copies objects with."""
    return getattr(getattr(stager, "_state_dict_stager", None), "_deepcopy_dispatch", True) == {}


class DcpProcess(DcpStaged):
    """The same, written by a process of its own."""

    name = "DCP async_save, DefaultStager, process"

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        need_group()
        super().__init__(group)
        self.options = {"async_checkpointer_type": AsyncCheckpointerType.PROCESS}


class Nvrx(Rival):
    """NVIDIA's Resiliency Extension: torch.save in a process that stays."""

    name = "NVRx async torch.save"
    in_background = True

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        from nvidia_resiliency_ext.checkpointing.async_ckpt.torch_ckpt import TorchAsyncCheckpoint

        need_group()
        super().__init__(group)
        self.engine = TorchAsyncCheckpoint()

    def save(self, state: State, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.engine.async_save(state, str(place / f"{self.rank}.pt"))

    def wait(self) -> None:
        self.engine.finalize_async_save(blocking=True)

    def load(self, state: State, place: Path) -> None:
        fill(state, torch.load(place / f"{self.rank}.pt", weights_only=True))

    def close(self) -> None:
        self.engine.close()


class TorchCheckpointing(Rival):
    name = "torch_checkpointing"
    in_background = True
    wants_new_places = True

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        from torch_checkpointing import CheckpointManager
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        super().__init__(group)
        config = (CheckpointManager.Config.with_async_save() if self.in_background
                  else CheckpointManager.Config.with_sync_save())  # fmt: skip
        # Its O_DIRECT writes fail if the size of a tensor is not a multiple of the block size.
        config.storage_config = LocalFileSystemStorageConfig(use_direct_io=False)
        self.manager = config.build()

    def save(self, state: State, place: Path) -> None:
        self.future = self.manager.save(str(place), {"state": state})

    def updating(self) -> AbstractContextManager[Any]:
        return self.manager.lock() if self.in_background else super().updating()

    def is_written(self) -> bool:
        return self.future.done() and self.future.result() is not self

    def wait(self) -> None:
        if self.in_background:
            self.future.result()

    def load(self, state: State, place: Path) -> None:
        self.manager.load(str(place), into={"state": state})

    def close(self) -> None:
        self.manager.close()


class TorchCheckpointingAtOnce(TorchCheckpointing):
    in_background = False


# Those that save while a training goes on, or are what others are compared with. Benches of a training loop
# measure all of them the same number of times.
IN_A_LOOP = (TorchSave, Safetensors, DcpAsync, DcpStaged, DcpProcess, TorchCheckpointing, Nvrx)
PACKAGES = ("torch", "safetensors", "torch_checkpointing", "nvidia-resiliency-ext")


def versions() -> dict[str, str]:
    """The installed packages of the rivals."""
    out = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            out[package] = metadata.version(package)
    return out


def need_group() -> None:
    """Makes a process group of this process alone, for libraries that ask for their rank, if there is none."""
    os.environ.setdefault("MASTER_ADDR", "localhost")  # a process of DCP's own would ask for the name of the host
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def tensors_in(state: Mapping[Any, Any], path: str = "") -> State:
    """The tensors of a state that has maps in maps, such as those of models and optimizers, by their paths."""
    out: State = {}
    for name, value in state.items():
        if isinstance(value, Mapping):
            out |= tensors_in(value, f"{path}{name}.")
        elif isinstance(value, torch.Tensor):
            out[f"{path}{name}"] = value
    return out


def fill(state: State, loaded: State) -> None:
    for name, tensor in state.items():
        tensor.copy_(loaded[name])


def installed(kinds: Iterable[type[Rival]], make: Callable[[type[Rival]], Made],
              say: Callable[[str], None] = print) -> list[Made]:  # fmt: skip
    """What `make` makes of each rival that works here. The others are left out by name."""
    made = []
    for kind in kinds:
        try:
            made.append(make(kind))
        except Exception as error:  # noqa: BLE001: a rival may fail in any way
            say(f"  {kind.name}: left out, {type(error).__name__}: {error}")
    return made
