"""Writes checkpoints of torch.distributed.checkpoint as steps of a run directory."""

import threading
from dataclasses import replace
from os import PathLike
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import SavePlan, StorageWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from holdfast import _native
from holdfast.arrays import describe_one
from holdfast.checkpoint import Tiers
from holdfast.torch.dcp.planners import Values
from holdfast.torch.dcp.step_ids import FORMAT, box_of, ends_with_number, step_of
from holdfast.torch.loop.job import complete, open_job, warn
from holdfast.torch.loop.transport import connect

_Path = str | PathLike[str]


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
            handle = self._job.save(plan.storage_data, pieces, tensors, {}, f"{ranks} ranks")
            complete(self._job, lambda: (objects, None))
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
        return ends_with_number(checkpoint_id)


def _piece(item: WriteItem, tensor: torch.Tensor) -> _native.HeldPiece:
    data = item.tensor_data
    assert data is not None
    return _native.HeldPiece(describe_one(item.index.fqn, tensor), list(data.size),
                             box_of(data.chunk.offsets, data.chunk.sizes))
