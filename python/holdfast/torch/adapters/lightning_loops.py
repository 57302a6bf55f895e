"""Where Lightning's loops are between two batches, and how they go on there after a resume.

Lightning has no hook for the moment at which all that belongs to a batch is done: hooks of the
module and of other callbacks come after a callback's own, and then a validation, schedulers, and
at the end of an epoch the hooks of that. A checkpoint from before them would lose what they do.
So the methods that end a batch and an epoch are followed by a call of ours.

Lightning's own restart is made for checkpoints from inside a batch. It skips the validation
after an epoch's last batch, and the schedulers that follow a metric. So its loops are told that
they restart only while they put back their counters and make their iterators.
"""

from collections.abc import Callable
from typing import Any

from holdfast.torch.data.base_loader import Loader


class BatchBoundaries:
    """Calls `call` after each batch, when all that belongs to it is done, and `end` after the last."""

    def __init__(self, trainer: Any, call: Callable[[Any], None], end: Callable[[], None]) -> None:
        fit_loop = trainer.fit_loop
        epoch_loop = fit_loop.epoch_loop

        def begin(data_fetcher: Any) -> None:
            type(epoch_loop).on_run_start(epoch_loop, data_fetcher)
            end_restart(fit_loop)

        def end_batch(data_fetcher: Any) -> None:
            type(epoch_loop).on_advance_end(epoch_loop, data_fetcher)
            if not epoch_loop.done:
                call(trainer)

        def end_epoch() -> None:
            type(fit_loop).on_advance_end(fit_loop)
            call(trainer)

        def end_run() -> None:
            end()
            type(fit_loop).on_run_end(fit_loop)

        self._loops = {epoch_loop: {"on_run_start": begin, "on_advance_end": end_batch},
                       fit_loop: {"on_advance_end": end_epoch, "on_run_end": end_run}}
        for loop, methods in self._loops.items():
            vars(loop).update(methods)

    def remove(self) -> None:
        """Leaves the loops as they were."""
        for loop, methods in self._loops.items():
            for name in methods:
                vars(loop).pop(name, None)


def begin_restart(fit_loop: Any) -> None:
    """Has all loops put their counters back, and the loaders their positions.

    The setter of Lightning's attribute does not restart loops between two epochs.
    """
    for loop in _all_loops(fit_loop):
        loop._restarting = True


def end_restart(fit_loop: Any) -> None:
    """Has all loops go on as if they had made all batches so far."""
    for loop in _all_loops(fit_loop):
        loop._restarting = loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False
        loop.reset_restart_stage()


def _all_loops(loop: Any) -> list[Any]:
    inner = [one for one in vars(loop).values() if hasattr(one, "reset_restart_stage")]
    return [loop, *(one for outer in inner for one in _all_loops(outer))]


def begin_epoch(fit_loop: Any) -> None:
    """Has the next epoch make an iterator of its own, as in a run that was not stopped.

    A loader of Holdfast that is iterated a second time goes on with the next epoch. Another one
    that knows its position is first brought to the end of its epoch, in which no batch is left.
    """
    end_restart(fit_loop)
    loaders = fit_loop._combined_loader.flattened
    if any(hasattr(one, "load_state_dict") and not isinstance(one, Loader) for one in loaders):
        next(fit_loop._data_fetcher, None)
