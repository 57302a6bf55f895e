"""What a step changes before its update, so that it can be made again.

Kept at its beginning: the random generators, the buffers, which a forward pass may write to
(BatchNorm), its arguments, the options of parameter groups, the objects that were given, and the
gradients, if steps add to them. Batches that it reads are handed out again. Moments change only in the update, and
so do most parameters (early_writes.py).
"""

from collections import defaultdict
from collections.abc import Collection
from typing import Any

import torch

from holdfast.torch.recover.buffers_before_step import BuffersBeforeStep
from holdfast.torch.recover.early_writes import EarlyWrites
from holdfast.torch.recover.kept_gradients import KeptGradients
from holdfast.torch.recover.kept_objects import KeptObjects, KeptOptions
from holdfast.torch.recover.repeated_calls import RepeatedCalls
from holdfast.torch.recover.step_inputs import StepInputs
from holdfast.torch.state.ddp_buckets import BucketOrders
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values import generators as random_generators


class StepStart:
    """The beginning of a step. One object serves all steps."""

    def __init__(self, state: TrainingState, buckets: BucketOrders, scalers: list[Any],
                 repeated: RepeatedCalls) -> None:
        self._models, self._optimizers = state.models, state.optimizers
        self._ddp_buckets = buckets
        self._flags: list[bool] = []  # sync_flags() of the DDP modules
        self._scalers = scalers
        self._own_generators = state.generators
        self._buffers = BuffersBeforeStep(state.models)
        self._options, self._objects = KeptOptions(state.optimizers), KeptObjects(state)
        self._writes = EarlyWrites(state.parameters, repeated.written, speaks=state.rank == 0)
        self._kept_gradients = KeptGradients(state.parameters, state.models, repeated.gradients,
                                             speaks=state.rank == 0)
        state.on_forget += [self._writes.forget, self._kept_gradients.forget]
        self._inputs = StepInputs()
        self._loader = state.loader
        self._generators: dict[str, Any] = {}
        self._gradients: list[int | None] = []

    def keep(self, args: Any, kwargs: Any) -> None:
        """Keeps what is to be restored, now."""
        self._generators = random_generators.capture(self._own_generators)
        self._buffers.keep()
        self._options.keep()
        self._objects.keep()
        self._writes.keep(self._objects.large_tensors())
        self._inputs.keep(args, kwargs)
        if self._loader is not None:
            self._loader.keep_batches(self._inputs.add)
        self._flags = self._ddp_buckets.sync_flags()
        self._gradients = self._gradients_now()
        self._kept_gradients.keep()

    def look_at_gate(self, function: str) -> bool:
        """At the gate of a step: looks for writes to parameters. True if there were any."""
        self._kept_gradients.look(function)
        return self._writes.look(function)

    def look(self, function: str) -> None:
        """After an undisturbed step: notes what it has changed that must be kept from now on."""
        if self._loader is not None:
            self._loader.forget_batches()
        self._buffers.look()
        self._inputs.look(function)

    def restore(self, undone: Collection[str] = ()) -> str:
        """Goes back to what keep() has seen. Returns why that was not possible, or "".

        An update of the parameters `undone` was taken back before (undo.py).
        """
        random_generators.restore(self._generators, self._own_generators)
        parts = (self._options, self._objects, self._buffers, self._inputs)
        why = next(filter(None, [self._writes.restore(undone), *(part.restore() for part in parts)]), "")
        if self._loader is not None and not self._loader.hand_out_again():
            why = "the step had read batches up to the end of an iteration"
        if self._kept_gradients.lacks_copies():
            why = "the step had added to gradients of earlier steps, of which there was no copy"
        self._ddp_buckets.set_sync_flags(self._flags)
        if not self._kept_gradients.may_stay():
            had = any(version is not None for version in self._gradients)
            for one in (*self._optimizers, *self._models):
                one.zero_grad(set_to_none=not had)
        self._kept_gradients.restore()
        for scaler in self._scalers:
            _forget_stage(scaler)
        return why

    def check_no_gradients_wait(self) -> None:
        """ValueError if the step has made gradients and no update: they would be lost."""
        if self._gradients != self._gradients_now() and not self._writes.changed():
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

