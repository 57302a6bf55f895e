"""Holdfast as the storage of torch.distributed.checkpoint (DCP).

    writer = holdfast.torch.dcp.Writer("runs/gpt")                # once, on all ranks
    dcp.save(state, checkpoint_id=step, storage_writer=writer, planner=SavePlanner())
    dcp.load(state, storage_reader=Reader("runs/gpt"), planner=LoadPlanner())

What is written is a step like any other: tensors by DCP's names ("model.fc.weight"), cut as
the ranks held them, and plain objects. `holdfast ls`, verify and open() read it, and another
number of ranks loads it. DCP's own planners pickle what is no tensor and run that pickle
when it is loaded; these store it as typed values, or refuse it by its key.
"""

import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import (
    LoadPlan,
    ReadItem,
    SavePlan,
    StorageReader,
    StorageWriter,
)
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from holdfast import Box, Contents, TensorInfo, _native
from holdfast.arrays import describe_one
from holdfast.checkpoint import Tiers
from holdfast.torch.dcp_planners import LoadPlanner, SavePlanner, Values
from holdfast.torch.dtypes import torch_dtype
from holdfast.torch.job import open_job, warn
from holdfast.torch.transport import connect
from holdfast.torch.trees import names_in, unpack

__all__ = ["LoadPlanner", "Reader", "SavePlanner", "Writer", "step_of"]

_Path = str | PathLike[str]

FORMAT = 1  # of the objects of a step: {"dcp": FORMAT, "values": ..., "paths": ...}


class Writer(StorageWriter):
    """Writes DCP's checkpoints as steps of a run directory.

    Made on all ranks of `group` together, as a collective, and kept for the whole run, which
    it owns until close(). `checkpoint_id` of dcp.save is the step's number, or text that
    ends with it ("step-100"). dcp.save and the future of dcp.async_save are done when the
    step is committed and durable; if a rank fails, there is no step. One save at a time;
    AsyncCheckpointerType.PROCESS is refused.

    keep, tiers, allow_unreachable_tiers, read_back, incremental, compress, space_reserve and
    direct are those of holdfast.Saver and holdfast.Checkpointer; `timeout` is how long ranks
    wait for another.
    """

    def __init__(
        self,
        run: _Path,
        *,
        group: dist.ProcessGroup | None = None,
        keep: int | _native.Keep | None = None,
        tiers: Tiers = (),
        allow_unreachable_tiers: bool = False,
        ring: int = 0,
        read_back: bool = False,
        incremental: bool = False,
        compress: int = 0,
        space_reserve: int = 64 << 20,
        direct: bool = True,
        timeout: float = 60.0,
    ) -> None:
        super().__init__()
        self._timeout = timeout
        self._transport = connect(group)
        self._step: int | None = None
        self._lock = threading.Lock()
        self._job: _native.Job | None = open_job(
            run, self._transport, every="1 steps", grace=0, signals=False, keep=keep,
            tiers=tiers, ring=ring, backpressure="wait", in_flight=1, read_back=read_back,
            incremental=incremental, compress=compress, space_reserve=space_reserve,
            direct=direct, guard="off", timeout=timeout,
            allow_unreachable_tiers=allow_unreachable_tiers,
        )
        warn(self._job)

    def reset(self, checkpoint_id: Any = None) -> None:
        """A new save begins, of that step."""
        self._step = None if checkpoint_id is None else step_of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Refuses a call that is not of all ranks."""
        rank = 0 if self._transport is None else self._transport.rank
        if not kwargs.get("use_collectives", True) or is_coordinator != (rank == 0):
            raise ValueError("dcp.save with no_dist, use_collectives=False or another group "
                             "than the Writer's, want all ranks of it together")
        if self._step is None:
            raise ValueError("checkpoint_id: None, want the number of the step")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Refuses what a planner would pickle."""
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                raise TypeError(f"{item.index.fqn}: no tensor, and the planner would pickle it; "
                                "want planner=holdfast.torch.dcp.SavePlanner()")
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Tells all ranks the step."""
        return [replace(plan, storage_data=self._step) for plan in plans]

    def write_data(self, plan: SavePlan, planner: Any) -> Future[list[WriteResult]]:
        """Saves, with all ranks, and waits until that is durable."""
        tensors = [planner.resolve_data(item).detach().cpu() for item in plan.items]
        pieces = [_piece(item, tensor)
                  for item, tensor in zip(plan.items, tensors, strict=True)]
        values = plan.planner_data if isinstance(plan.planner_data, Values) else Values({}, {})
        objects = {"dcp": FORMAT, "values": values.trees, "paths": values.paths}
        with self._lock:
            if self._job is None:
                raise ValueError("the writer is closed")
            ranks = 1 if self._transport is None else self._transport.size
            handle = self._job.save(plan.storage_data, pieces, tensors, {}, f"{ranks} ranks",
                                    lambda: (objects, None))
            handle.durable()
            warn(self._job)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, tensor.nbytes, None)
                         for item, tensor in zip(plan.items, tensors, strict=True)])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Nothing is left to do: the ranks have committed the step among themselves."""

    def close(self, timeout: float | None = None) -> None:
        """Lets go of the run. On all ranks."""
        self._close(timeout, alone=False)

    def _close(self, timeout: float | None, *, alone: bool) -> None:
        with self._lock:
            if self._job is not None:
                self._job.close(timeout, alone, orderly=not alone)
                warn(self._job)
            self._job = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if error is None or self._transport is None:
            self.close()
            return
        try:  # the others may be anywhere: nothing is agreed upon, and they find it gone
            self._close(self._timeout, alone=True)
        except Exception as failure:
            error.add_note(f"and the last save failed: {failure}")
        finally:
            self._transport.close()

    def __reduce__(self) -> Any:
        raise TypeError("holdfast.torch.dcp.Writer belongs to its process, want "
                        "AsyncCheckpointerType.THREAD")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """True for what ends with a number."""
        return _NUMBER.search(_text(checkpoint_id)) is not None


class Reader(StorageReader):
    """Reads a step of a run for dcp.load, on any number of ranks.

    `checkpoint_id` of dcp.load is the step; without it, the newest whole one is taken.
    Every byte is checked when it is read (CorruptError); with verify="full" all of the step
    is read and checked first, by every rank, and a damaged one passed over for the one
    before it. Steps of a Checkpointer can be read too: their tensors, by its names.
    """

    def __init__(self, run: _Path, *, verify: str = "fast") -> None:
        super().__init__()
        if verify not in ("fast", "full"):
            raise ValueError(f"verify={verify!r}: want 'fast' or 'full'")
        self._run = fspath(run)
        self._verify_all = verify == "full"
        self.reset()

    def reset(self, checkpoint_id: Any = None) -> None:
        """Another load begins, of that step or of the newest."""
        self._step = None if checkpoint_id is None else step_of(checkpoint_id)
        self._opened: Contents | None = None
        self._trees: Mapping[str, Any] = {}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Names, dtypes and shapes; each tensor is one chunk, however it is cut."""
        found = _native.restore(self._run, [], self._step, self._verify_all)
        self._step = found.step
        self._opened = Contents(found.folder)
        self._trees, paths = _values_of(found.objects)
        inside = {name for tree in self._trees.values() for name in names_in(tree)}
        described: dict[str, Any] = {name: _described(info)
                                     for name, info in self._opened.items()
                                     if name not in inside}
        described |= {key: BytesStorageMetadata() for key in self._trees}
        return Metadata(described, planner_data=paths)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any,
                              **kwargs: Any) -> None:
        """Nothing to do: read_metadata() has opened it."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Tells all ranks which step the first one has found."""
        return [replace(plan, storage_data=self._step) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: Any) -> Future[None]:
        """Fills the tensors of the state, and gives it its values."""
        if plan.storage_data != self._step:
            raise ValueError(f"{self._run}: step {self._step} here and {plan.storage_data} on the "
                             "first rank, want a run that does not change meanwhile, or a "
                             "checkpoint_id")
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                self._load_value(item, planner)
            else:
                target = planner.resolve_tensor(item).detach()
                self._fill(item.storage_index.fqn, _box(item.storage_offsets, item.lengths),
                           target)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """True for what ends with a number."""
        return Writer.validate_checkpoint_id(checkpoint_id)

    def _contents(self) -> Contents:
        assert self._opened is not None  # by read_metadata()
        return self._opened

    def _load_value(self, item: ReadItem, planner: Any) -> None:
        key = item.storage_index.fqn
        if not isinstance(planner, LoadPlanner):
            raise TypeError(f"{key}: no tensor, and the planner would unpickle it; want "
                            "planner=holdfast.torch.dcp.LoadPlanner()")
        tree = self._trees[key]
        tensors = {}
        for name in names_in(tree):
            info = self._contents()[name]
            tensors[name] = torch.empty(tuple(info.shape), dtype=torch_dtype(info.dtype))
            self._fill(name, None, tensors[name])
        planner.load_value(item, unpack(tree, tensors))

    def _fill(self, name: str, box: Box | None, target: torch.Tensor) -> None:
        contents = self._contents()
        info = contents[name]
        dtype = torch_dtype(info.dtype)
        direct = target.device.type == "cpu" and target.dtype == dtype
        memory = target if direct else torch.empty(target.shape, dtype=dtype)
        contents._native.read_into(describe_one(info.name, memory), box)
        if not direct:
            target.copy_(memory)


_NUMBER = re.compile(r"(\d+)/?$", re.ASCII)


def step_of(checkpoint_id: Any) -> int:
    """The step that a checkpoint_id means: its number, or the one that it ends with."""
    found = _NUMBER.search(_text(checkpoint_id))
    if found is None:
        raise ValueError(f"checkpoint_id: {checkpoint_id!r}, want the number of the step, or "
                         "text that ends with it")
    return int(found[1])


def _text(checkpoint_id: Any) -> str:
    return str(checkpoint_id) if isinstance(checkpoint_id, int) else fspath(checkpoint_id)


def _box(offsets: Any, lengths: Any) -> Box:
    return Box([(lo, lo + size) for lo, size in zip(offsets, lengths, strict=True)])


def _piece(item: WriteItem, tensor: torch.Tensor) -> _native.HeldPiece:
    data = item.tensor_data
    assert data is not None
    return _native.HeldPiece(describe_one(item.index.fqn, tensor), list(data.size),
                             _box(data.chunk.offsets, data.chunk.sizes))


def _described(info: TensorInfo) -> TensorStorageMetadata:
    shape = torch.Size(info.shape)
    chunk = ChunkStorageMetadata(torch.Size([0] * len(shape)), shape)
    return TensorStorageMetadata(TensorProperties(dtype=torch_dtype(info.dtype)), shape, [chunk])


def _values_of(objects: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    version = objects.get("dcp") if isinstance(objects, dict) else None
    if version is None:
        return {}, {}  # not by a Writer
    values, paths = objects.get("values"), objects.get("paths")
    if version != FORMAT or not isinstance(values, dict) or not isinstance(paths, dict):
        raise ValueError(f"objects of a DCP step, version {version!r}, want {FORMAT}")
    return values, paths
