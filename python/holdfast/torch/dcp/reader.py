"""Reads steps of a run for torch.distributed.checkpoint."""

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

import torch
from torch.distributed.checkpoint import LoadPlan, ReadItem, StorageReader
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType
from torch.futures import Future

from holdfast import Box, Contents, TensorInfo, _native
from holdfast.arrays import describe_one
from holdfast.rehearse.plan import place_to_read
from holdfast.torch.dcp.planners import LoadPlanner
from holdfast.torch.dcp.step_ids import FORMAT, box_of, ends_with_number, step_of
from holdfast.torch.values.dtypes import torch_dtype
from holdfast.torch.values.trees import tensor_names_in, unpack

_Path = str | PathLike[str]


class Reader(StorageReader):
    """Reads a step of a run for dcp.load, on any number of ranks.

    `checkpoint_id` of dcp.load is the step; without it, the newest whole step is read. Every byte
    is checked when it is read (CorruptError). With verify="full", every rank first reads and
    checks all of the step, and passes a damaged one over for the one before it. The tensors of a
    Checkpointer's steps can be read, too, by the names that it gives them.
    """

    def __init__(self, run: _Path, *, verify: str = "fast") -> None:
        super().__init__()
        if verify not in ("fast", "full"):
            raise ValueError(f"verify={verify!r}; expected 'fast' or 'full'")
        self._run = run
        self._verify_all = verify == "full"
        self.reset()

    def reset(self, checkpoint_id: Any = None) -> None:
        """Another load begins, of that step or of the newest."""
        self._asked = None if checkpoint_id is None else step_of(checkpoint_id)
        self._step: int | None = None  # the step that read_metadata() has found
        self._opened: Contents | None = None
        self._trees: Mapping[str, Any] = {}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Names, dtypes and shapes; each tensor is one chunk, however it is cut."""
        found = _native.restore(place_to_read(self._run), [], self._asked, self._verify_all)
        self._step = found.step
        self._opened = Contents(found.folder)
        self._trees, paths = _values_of(found.objects)
        inside = {name for tree in self._trees.values() for name in tensor_names_in(tree)}
        described: dict[str, Any] = {name: _described(info)
                                     for name, info in self._opened.items()
                                     if name not in inside}
        described |= {key: BytesStorageMetadata() for key in self._trees}
        return Metadata(described, planner_data=paths)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any,
                              **kwargs: Any) -> None:
        """Forgets the id: torch calls reset() only if it has an id, so an id counts for one load.

        Not sooner, because read_metadata() may be called several times before a load.
        """
        self._asked = None

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Tells all ranks which step the first rank has found."""
        return [replace(plan, storage_data=self._step) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: Any) -> Future[None]:
        """Fills the tensors of the state, and sets its other values."""
        if plan.storage_data != self._step:
            raise ValueError(f"{self._run}: step {self._step} here and {plan.storage_data} on the "
                             "first rank; expected a run that does not change meanwhile, or a "
                             "checkpoint_id")
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                self._load_value(item, planner)
            else:
                target = planner.resolve_tensor(item).detach()
                self._fill(item.storage_index.fqn, box_of(item.storage_offsets, item.lengths),
                           target)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """True for an id that ends with a number."""
        return ends_with_number(checkpoint_id)

    def _contents(self) -> Contents:
        assert self._opened is not None  # read_metadata() has set it
        return self._opened

    def _load_value(self, item: ReadItem, planner: Any) -> None:
        key = item.storage_index.fqn
        if not isinstance(planner, LoadPlanner):
            raise TypeError(f"{key}: no tensor, and the planner would unpickle it; expected "
                            "planner=holdfast.torch.dcp.LoadPlanner()")
        tree = self._trees[key]
        tensors = {}
        for name in tensor_names_in(tree):
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


def _described(info: TensorInfo) -> TensorStorageMetadata:
    shape = torch.Size(info.shape)
    chunk = ChunkStorageMetadata(torch.Size([0] * len(shape)), shape)
    return TensorStorageMetadata(TensorProperties(dtype=torch_dtype(info.dtype)), shape, [chunk])


def _values_of(objects: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    version = objects.get("dcp") if isinstance(objects, dict) else None
    if version is None:
        return {}, {}  # the step is not by a Writer
    values, paths = objects.get("values"), objects.get("paths")
    if version != FORMAT or not isinstance(values, dict) or not isinstance(paths, dict):
        raise ValueError(f"objects of a DCP step: version {version!r}; expected {FORMAT}")
    return values, paths
