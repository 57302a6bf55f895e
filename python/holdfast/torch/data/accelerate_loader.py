"""Loaders that accelerate has prepared, saved with the order of their epoch.

The state of such a loader (use_stateful_dataloader=True) only counts batches. The order of the
batches comes from the generator of the process, from generators of samplers, or from a seed and
the number of the epoch. A new process has other values of all three. So they are kept here as they
were when the epoch began, which accelerate announces by calling the loader's set_epoch().
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


def is_accelerated(data: Any) -> bool:
    """True for a loader that accelerate has made."""
    return type(data).__module__.startswith("accelerate.") and hasattr(data, "base_dataloader")


class AccelerateLoader:
    """A loader of accelerate, as an object of a checkpoint.

    From a state at the end of an epoch, accelerate's loader goes straight on with the next epoch.
    So what is kept at the end of an epoch is the beginning of the next one.
    """

    def __init__(self, loader: Any) -> None:
        if not hasattr(loader.base_dataloader, "state_dict"):
            raise TypeError("data: accelerate's loader does not know its position; expected "
                            "DataLoaderConfiguration(use_stateful_dataloader=True)")
        self._loader = loader
        self._samplers = _samplers_of(loader)
        self._epoch = 0
        self._start: dict[str, Any] | None = None  # the generators when the epoch began
        self.waits = False  # the next iteration resumes in the middle of an epoch
        self._replays = False
        self._is_bare = False  # the loaded state is the loader's own, without an order
        loader.set_epoch = self._begin_epoch

    def state_dict(self) -> dict[str, Any]:
        """The position, and the generators from which the order is drawn."""
        if self._start is None:
            return {"iteration": self._loader.iteration, "start": self._now()}
        if self._loader.end_of_dataloader and not self.waits:
            return {"iteration": self._epoch + 1, "start": self._now()}
        return {"iteration": self._epoch, "start": self._start,
                "loader": self._loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets the position. An earlier version of Holdfast saved positions without an order."""
        self._is_bare = "start" not in state
        if self._is_bare:
            self._loader.load_state_dict(state)
            return
        self._loader.iteration = self._epoch = state["iteration"]
        self.waits = "loader" in state
        self._start = state["start"] if self.waits else None
        if self.waits:
            self._loader.dl_state_dict = state["loader"]
            self._loader.load_state_dict(state["loader"])
        elif not state["start"]["made"]:
            self._loader.load_state_dict({})  # drops an iterator that was made too early
        self._set_samplers(state["start"])

    def inexact(self, draws: bool | None) -> list[str]:
        """Why a run that resumes from the loaded position may differ in bits."""
        if self._is_bare:
            return ["data: the checkpoint has the position of accelerate's loader, and not what "
                    "its order comes from: it may go on with other samples"]
        if not self.waits or self._start is None:
            return []
        kind, found = type(self._loader).__name__, []
        if draws:
            found.append(f"generators: a {kind} reads one batch ahead, and what the dataset drew "
                         "for that one before the save is not drawn again; expected samples that "
                         "draw nothing, or holdfast.data.loader")
        if self._start["made"] and self._loader.num_workers > 0 and self._is_random():
            found.append(f"data: a {kind} drew the order of its first epoch for its workers when "
                         "it was made, and does not draw it again; expected num_workers=0, or "
                         "holdfast.data.loader")
        return found

    @contextlib.contextmanager
    def replaying(self) -> Iterator[None]:
        """In the block, the loader resumes in the middle of its epoch and draws its order again."""
        self._loader.iteration, self._replays = self._epoch, True
        try:
            yield
        finally:
            self.waits = self._replays = False

    def _begin_epoch(self, epoch: int) -> None:
        type(self._loader).set_epoch(self._loader, epoch)
        if self._replays:
            self._set_start(made=False)
        elif not self.waits:
            self._epoch, self._start = epoch, self._now()

    def iterator_made(self) -> None:
        """To be called in replaying(), after the loader's iterator was made, which draws."""
        self._set_start(made=True)

    def _set_start(self, made: bool) -> None:
        if self._start is not None and self._start["made"] == made:
            torch.default_generator.set_state(_tensor(self._start["default"]))
            self._set_samplers(self._start)

    def _set_samplers(self, start: dict[str, Any]) -> None:
        for sampler, kept in zip(self._samplers, start["samplers"], strict=True):
            _set_sampler(sampler, kept)

    def _now(self) -> dict[str, Any]:
        # accelerate makes the first iterator before the first epoch, to know its first state.
        made = bool(getattr(self._loader.base_dataloader, "_initial_iter_for_state_dict", False))
        return {"default": _bytes(torch.default_generator), "made": made,
                "samplers": [_kept_of(sampler) for sampler in self._samplers]}

    def _is_random(self) -> bool:
        return any(hasattr(sampler, "generator") for sampler in self._samplers[1:])


def _samplers_of(loader: Any) -> list[Any]:
    """The loader that accelerate wraps, its samplers, and the samplers inside them."""
    found = [loader.base_dataloader]
    for one in found:
        inner = [getattr(one, name, None) for name in ("batch_sampler", "sampler")]
        found += [other for other in inner if other is not None and not _has(found, other)]
    return found


def _has(found: list[Any], one: Any) -> bool:
    return any(one is other for other in found)


def _kept_of(sampler: Any) -> dict[str, Any]:
    generator = getattr(sampler, "generator", None)
    own = isinstance(generator, torch.Generator) and generator is not torch.default_generator
    return {"seed": getattr(sampler, "initial_seed", None),
            "generator": _bytes(generator) if own else None}


def _set_sampler(sampler: Any, kept: dict[str, Any]) -> None:
    if kept["seed"] is not None:
        sampler.initial_seed = kept["seed"]
    if kept["generator"] is not None:
        if sampler.generator is None:
            sampler.generator = torch.Generator()
        sampler.generator.set_state(_tensor(kept["generator"]))


def _bytes(generator: torch.Generator) -> bytes:
    return generator.get_state().numpy().tobytes()


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
