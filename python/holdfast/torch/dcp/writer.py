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
from holdfast.checkpoint import Tiers, absolute_path, log_messages
from holdfast.options import Failures, Resuming, Writing, check_groups, check_unused
from holdfast.rehearse.plan import places
from holdfast.torch.dcp.planners import Values
from holdfast.torch.dcp.step_ids import FORMAT, box_of, ends_with_number, step_of
from holdfast.torch.loop.job import open_job
from holdfast.torch.loop.transport import connect

_Path = str | PathLike[str]


class Writer(StorageWriter):
    """Writes DCP's checkpoints as steps of a run directory.

    Make it on all ranks of `group` together, as a collective call, and keep it for the whole
    run, which it owns until close(). `checkpoint_id` of dcp.save is the number of the step, or
    text that ends with it ("step-100"). dcp.save and the future of dcp.async_save are done when
    the step is committed and durable; if a rank fails, there is no step. There is one save at a
    time; AsyncCheckpointerType.PROCESS is refused.

    keep, tiers, allow_unreachable_tiers and `writing` (a holdfast.Writing) are those of
    holdfast.Saver; `timeout` is how many seconds ranks wait for another.
    """

    def __init__(
        self,
        run: _Path,
        *,
        group: dist.ProcessGroup | None = None,
        keep: int | _native.Keep | None = None,
        tiers: Tiers = (),
        allow_unreachable_tiers: bool = False,
        writing: Writing = Writing(),
        timeout: float = 60.0,
    ) -> None:
        super().__init__()
        check_groups(writing=writing)
        check_unused("dcp.Writer", writing, "backpressure", "in_flight", "guard")
        if isinstance(keep, _native.Keep) and keep.best > 0:
            raise ValueError(f'keep: the best steps by "{keep.metric}", and dcp.save reports no '
                             "metric; expected a rule without best=")
        run, tiers, _ = places(absolute_path(run), tiers)
        self._timeout = timeout
        self._transport = connect(group)
        self._asked: int | None = None  # the step that reset() was given, for the next save
        self._step: int | None = None  # the step of the save that runs
        self._lock = threading.Lock()
        self._job: _native.Job | None = open_job(
            run, self._transport, every="never", keep=keep, tiers=tiers,
            writing=replace(writing, in_flight=1, guard="off"),
            failures=Failures(grace=0, signals=False, timeout=timeout),
            resuming=Resuming(allow_unreachable_tiers=allow_unreachable_tiers),
        )
        log_messages(self._job)

    def reset(self, checkpoint_id: Any = None) -> None:
        """Begins a new save, of the step that the id names."""
        self._asked = None if checkpoint_id is None else step_of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Refuses a call that not all ranks of the group make, or that names no step."""
        # torch calls reset() only if it has an id, so an id counts for one save.
        self._step, self._asked = self._asked, None
        rank = 0 if self._transport is None else self._transport.rank
        if not kwargs.get("use_collectives", True) or is_coordinator != (rank == 0):
            raise ValueError("dcp.save: no_dist, use_collectives=False or another group than the "
                             "Writer's; expected a call by all ranks of the Writer's group")
        if self._step is None:
            raise ValueError("dcp.save: checkpoint_id=None; expected the number of the step")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Refuses values that a planner would pickle."""
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                raise TypeError(f"{item.index.fqn}: no tensor, and the planner would pickle it; "
                                "expected planner=holdfast.torch.dcp.SavePlanner()")
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Tells all ranks the number of the step."""
        return [replace(plan, storage_data=self._step) for plan in plans]

    def write_data(self, plan: SavePlan, planner: Any) -> Future[list[WriteResult]]:
        """Saves with all ranks together, and waits until the save is durable."""
        tensors = [planner.resolve_data(item).detach().cpu() for item in plan.items]
        pieces = [_piece(item, tensor)
                  for item, tensor in zip(plan.items, tensors, strict=True)]
        values = plan.planner_data if isinstance(plan.planner_data, Values) else Values({}, {})
        objects = {"dcp": FORMAT, "values": values.trees, "paths": values.paths}
        with self._lock:
            if self._job is None:
                raise ValueError("dcp.Writer: closed; expected a save before close()")
            self._begin(self._job, plan.storage_data, pieces, tensors, objects).durable()
            log_messages(self._job)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, tensor.nbytes, None)
                         for item, tensor in zip(plan.items, tensors, strict=True)])
        return done

    def _begin(self, job: _native.Job, step: int, pieces: list[_native.Piece],
               tensors: list[torch.Tensor], objects: dict[str, Any]) -> _native.SaveHandle:
        """Begins a save. The engine first raises the error of the save before, on all ranks alike.

        That error was raised already when write_data() waited for its own save, so the save is
        begun again.
        """
        ranks = 1 if self._transport is None else self._transport.size

        def begin() -> _native.SaveHandle:
            return job.save(step, pieces, tensors, {}, f"{ranks} ranks", lambda: (objects, None))

        try:
            return begin()
        except Exception as error:
            if f"before step {step}: " not in str(error):
                raise
        return begin()

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Does nothing: the ranks have already committed the step."""

    def close(self, timeout: float | None = None) -> None:
        """Gives the run up, so that another process may own it. Call it on all ranks."""
        self._close(timeout, alone=False)

    def _close(self, timeout: float | None, *, alone: bool) -> None:
        with self._lock:
            if self._job is not None:
                self._job.close(timeout, alone, orderly=not alone)
                log_messages(self._job)
            self._job = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if error is None or self._transport is None:
            self.close()
            return
        try:  # the others may be anywhere: agree on nothing with them, they find this rank gone
            self._close(self._timeout, alone=True)
        except Exception as failure:
            error.add_note(f"and the last save failed: {failure}")
        finally:
            self._transport.close()

    def __reduce__(self) -> Any:
        raise TypeError("holdfast.torch.dcp.Writer belongs to its process; expected "
                        "AsyncCheckpointerType.THREAD")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """True for an id that ends with a number."""
        return ends_with_number(checkpoint_id)


def _piece(item: WriteItem, tensor: torch.Tensor) -> _native.Piece:
    data = item.tensor_data
    assert data is not None
    return _native.Piece(describe_one(item.index.fqn, tensor), list(data.size),
                             box_of(data.chunk.offsets, data.chunk.sizes))
