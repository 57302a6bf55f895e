"""What a step changes before its update, so that it can be made again.

Kept at its beginning: the random generators, the buffers, which a forward pass may write to
(BatchNorm), and whether there are gradients. Parameters and moments change only in the update.
"""

from collections import defaultdict
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from holdfast.torch.recover.flat_copy import FlatCopy
from holdfast.torch.state.ddp_buckets import BucketOrders
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values import generators as random_generators


class StepStart:
    """The beginning of a step. One object serves all steps."""

    def __init__(self, state: TrainingState, buckets: BucketOrders, scalers: list[Any]) -> None:
        self._models, self._optimizers = state.models, state.optimizers
        self._ddp_buckets = buckets
        self._flags: list[bool] = []  # of DDP
        self._scalers = scalers
        self._own_generators = state.generators
        self._buffers = FlatCopy([])
        self._generators: dict[str, Any] = {}
        self._gradients: list[int | None] = []

    def keep(self) -> None:
        """Keeps what is to be restored, now."""
        self._generators = random_generators.capture(self._own_generators)
        buffers = [_local(one) for model in self._models for one in model.buffers()]
        if not self._buffers.is_of(buffers):
            self._buffers = FlatCopy(buffers)
        self._buffers.take()
        self._flags = self._ddp_buckets.sync_flags()
        self._gradients = self._gradients_now()

    def restore(self) -> None:
        """Goes back to what keep() has seen."""
        random_generators.restore(self._generators, self._own_generators)
        self._buffers.put_back()
        self._ddp_buckets.set_sync_flags(self._flags)
        had = any(version is not None for version in self._gradients)
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=not had)
        for model in self._models:
            model.zero_grad(set_to_none=not had)
        for scaler in self._scalers:
            _forget_stage(scaler)

    def check_no_gradients_wait(self) -> None:
        """ValueError if the step has made gradients and no update: they would be lost."""
        if self._gradients != self._gradients_now():
            raise ValueError("run: gradients were made, and no update; expected all micro-batches "
                             "of an update in one ck.run()")

    def _gradients_now(self) -> list[int | None]:
        """The versions of some gradients; None where there is none."""
        return [None if one.grad is None else one.grad._version
                for one in self._first_parameters()]

    def _first_parameters(self) -> list[torch.Tensor]:
        return [group["params"][0] for optimizer in self._optimizers
                for group in optimizer.param_groups if group["params"]]


def _forget_stage(scaler: Any) -> None:
    """Forgets that gradients were unscaled: GradScaler would not do it again."""
    states = getattr(scaler, "_per_optimizer_states", None)
    if isinstance(states, defaultdict):
        states.clear()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor.detach()
