"""The micro-batches of a pipeline stage, one by one: what each draws, so that several processes can share them.

A schedule of torch calls its stage for the forward and the backward pass of each micro-batch. Here, these calls
go through a watcher, if there is one: Draws while nothing fails, Shares (helping.py) in processes that make the
steps of a lost rank again together. Receives stay as they are, so that any schedule of one stage can be shared.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from holdfast.torch.recover.record_bytes import are_alike, pack_states
from holdfast.torch.values import generators as random_generators

_LOOKED_AT, _EACH = 20, 16  # how many first updates are looked at, and one of how many later ones

Make = Callable[[], Any]


class Watcher:
    """Makes what a schedule asks for, as it is."""

    def forward(self, stage: Any, k: int, make: Make, *, keeps_output: bool) -> Any:
        """The forward pass of micro-batch `k`; stage.output_chunks gets its output if `keeps_output`."""
        return make()

    def backward(self, stage: Any, k: int, make: Make, *, is_whole: bool) -> None:
        """Its backward pass, or that of its inputs only if it is not `is_whole`."""
        make()

    def sends(self, stage: Any, k: int, make: Make) -> Any:
        """What the stage sends of it."""
        return make()

    def loss(self, losses: list[Any], stage: Any, k: int, make: Make) -> None:
        """Adds its loss to those of the schedule, if this is the last stage."""
        make()


_watcher: Watcher | None = None


def watch(watcher: Watcher | None) -> None:
    """From now on, that one makes what schedules ask for."""
    global _watcher
    _watcher = watcher


def install() -> None:
    """Called once in a new worker."""
    for name, around in (("forward_one_chunk", _forward), ("backward_one_chunk", _backward),
                         ("get_fwd_send_ops", _sends), ("get_bwd_send_ops", _sends)):
        _put_around(_PipelineStageBase, name, around)
    _put_around(schedules._PipelineSchedule, "_maybe_compute_loss", _loss)


def _put_around(kind: type, name: str, around: Callable[..., Any]) -> None:
    made = getattr(kind, name)

    @functools.wraps(made)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        make = functools.partial(made, self, *args, **options)
        return make() if _watcher is None else around(_watcher, make, self, *args, **options)

    setattr(kind, name, call)


def _forward(watcher: Watcher, make: Make, stage: Any, k: int, args: Any = (), kwargs: Any = None,
             save_forward_output: bool = True) -> Any:
    return watcher.forward(stage, k, make, keeps_output=save_forward_output)


def _backward(watcher: Watcher, make: Make, stage: Any, k: int, loss: Any = None, full_backward: bool = True,
              last_backward: bool = False) -> None:
    watcher.backward(stage, k, make, is_whole=full_backward)


def _sends(watcher: Watcher, make: Make, stage: Any, k: int) -> Any:
    return watcher.sends(stage, k, make)


def _loss(watcher: Watcher, make: Make, schedule: Any, stage: Any, output: Any, target: Any, k: int,
          *more: Any) -> None:
    watcher.loss(schedule._internal_losses, stage, k, make)


class Draws(Watcher):
    """The random generators before each micro-batch of an update, and why these cannot be shared, if they cannot."""

    def __init__(self, generators: dict[str, Any]) -> None:
        """`generators` are those of the program that have names."""
        self._generators = generators
        self._passes: list[dict[str, Any]] = []  # of the newest update
        self._left = 0  # backward passes of the newest of them
        self._stage: Any = None
        self._buffers: list[tuple[torch.Tensor, int]] = []
        self._looks = False
        self.why_not = ""

    def begin(self, update: int) -> None:
        """An update begins."""
        self._passes, self._left, self._stage = [], 0, None
        self._looks = update <= _LOOKED_AT or update % _EACH == 0

    def refuse(self, why: str) -> None:
        """The micro-batches of this rank cannot be shared from now on."""
        self.why_not = self.why_not or why

    def pack(self) -> bytes:
        """The passes of the update, as Shares needs them."""
        if self._left:
            self.refuse("a step does not make the backward passes of all micro-batches")
        if self.why_not:
            self._passes = []
        return pack_states(self._passes)

    def forward(self, stage: Any, k: int, make: Make, *, keeps_output: bool) -> Any:
        if stage.has_backward and not self.why_not:
            if self._left == 0:
                self._begin_pass(stage)
            elif stage is not self._stage:
                self.refuse("a rank has several stages")
            if self._passes:
                self._passes[-1]["before"].append(self._now())
                if len(self._passes[-1]["before"]) != k + 1:
                    self.refuse("its schedule makes micro-batches in another order")
        return make()

    def backward(self, stage: Any, k: int, make: Make, *, is_whole: bool) -> None:
        if not stage.has_backward or self.why_not or stage is not self._stage:
            return make()
        if not is_whole:
            self.refuse("its schedule makes backward passes in parts")
        before = self._now() if self._looks else None
        make()
        self._left -= 1
        if before is not None and not are_alike(before, self._now()):
            self.refuse("backward passes draw random numbers")
        if self._left == 0:
            self._passes[-1]["after"] = self._now()
            if self._looks:
                self._look_at_end()

    def _begin_pass(self, stage: Any) -> None:
        self._stage, self._left = stage, stage.chunks
        self._passes.append({"before": []})
        if isinstance(stage.submod, (DistributedDataParallel, FSDPModule)):
            self.refuse("its stage is cut over ranks, or has replicas")
        if self._looks:
            self._buffers = [(one, one._version) for one in stage.submod.buffers()]

    def _look_at_end(self) -> None:
        now = list(self._stage.submod.buffers())
        if len(now) != len(self._buffers) or any(one is not then or one._version != version for one, (then, version)
                                                 in zip(now, self._buffers, strict=True)):
            self.refuse("forward passes write to buffers")
        for one in self._stage.submod.parameters():
            if isinstance(one, DTensor):
                self.refuse("parameters are cut over ranks")
            elif one.grad is not None and one.grad.layout != torch.strided:
                self.refuse("a gradient is sparse")
            elif getattr(one, "_post_accumulate_grad_hooks", None):
                self.refuse("something else follows each gradient that is added")

    def _now(self) -> dict[str, Any]:
        return random_generators.capture(self._generators)
