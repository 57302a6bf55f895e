"""Saves and resumes data loaders that accelerate has prepared, with the order of their samples.

The state_dict() of such a loader (use_stateful_dataloader=True) holds only the number of batches
that were read. The order comes from torch's default generator, from generators of samplers, or
from a seed and the number of the epoch. A new process may have other values of all three. So their
state at the beginning of the epoch is saved, too. accelerate calls the loader's set_epoch() when
an epoch begins; that call is intercepted.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


def is_accelerated(data: Any) -> bool:
    """True for a loader that accelerate has prepared."""
    return type(data).__module__.startswith("accelerate.") and hasattr(data, "base_dataloader")


class AccelerateLoader:
    """Gives a loader of accelerate a state_dict() with which its order can be repeated.

    If accelerate's loader gets a state of the end of an epoch, it begins the next epoch. So at the
    end of an epoch the beginning of the next one is saved.
    """

    def __init__(self, loader: Any) -> None:
        if not hasattr(loader.base_dataloader, "state_dict"):
            raise TypeError("data: accelerate's loader cannot save its position; expected "
                            "DataLoaderConfiguration(use_stateful_dataloader=True)")
        self._loader = loader
        self._samplers = _samplers_of(loader)
        self._epoch = 0
        self._start: dict[str, Any] | None = None  # the generators when the epoch began
        self.resumes_mid_epoch = False  # the next iteration does
        self._is_replaying = False  # inside replaying()
        self._has_no_order = False  # the loaded state is accelerate's own, without generators
        loader.set_epoch = self._begin_epoch  # accelerate calls it when an epoch begins

    def state_dict(self) -> dict[str, Any]:
        """The position, and the generators from which the order is drawn."""
        if self._start is None:  # no epoch has begun
            return {"iteration": self._loader.iteration, "start": self._capture()}
        if self._loader.end_of_dataloader and not self.resumes_mid_epoch:
            return {"iteration": self._epoch + 1, "start": self._capture()}
        return {"iteration": self._epoch, "start": self._start,
                "loader": self._loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets the position, and the samplers' generators."""
        # An earlier version of Holdfast saved accelerate's own state.
        self._has_no_order = "start" not in state
        if self._has_no_order:
            self._loader.load_state_dict(state)
            return
        self._loader.iteration = self._epoch = state["iteration"]
        self.resumes_mid_epoch = "loader" in state
        self._start = state["start"] if self.resumes_mid_epoch else None
        if self.resumes_mid_epoch:
            self._loader.dl_state_dict = state["loader"]
            self._loader.load_state_dict(state["loader"])
        elif not state["start"]["made"]:
            # An empty state makes the loader drop an iterator that it made before its time.
            self._loader.load_state_dict({})
        self._restore_samplers(state["start"])

    def inexact(self, draws: bool | None) -> list[str]:
        """Why a resumed run may not have the same bits; `draws`: the dataset draws random numbers.
        """
        if self._has_no_order:
            return ["data: the checkpoint has the position of accelerate's loader and not the "
                    "order of its samples: the resumed run may read other samples"]
        if not self.resumes_mid_epoch or self._start is None:
            return []
        kind = type(self._loader).__name__
        found = []
        if draws:
            found.append(f"generators: a {kind} reads one batch ahead, and the random numbers "
                         "that the dataset drew for it before the save are not drawn again; "
                         "expected a dataset without random numbers, or holdfast.data.loader")
        if self._start["made"] and self._loader.num_workers > 0 and self._is_random():
            found.append(f"data: with workers, a {kind} draws the order of its first epoch when "
                         "it is made, and that order cannot be repeated; expected num_workers=0, "
                         "or holdfast.data.loader")
        return found

    @contextlib.contextmanager
    def replaying(self) -> Iterator[None]:
        """A context in which the loader's iterator is made, to resume in the middle of an epoch.

        The generators are set so that it draws the same order again.
        """
        self._loader.iteration, self._is_replaying = self._epoch, True
        try:
            yield
        finally:
            self.resumes_mid_epoch = self._is_replaying = False

    def _begin_epoch(self, epoch: int) -> None:
        type(self._loader).set_epoch(self._loader, epoch)  # the method that __init__ has hidden
        if self._is_replaying:
            self._restore_start(made=False)
        elif not self.resumes_mid_epoch:
            self._epoch, self._start = epoch, self._capture()

    def iterator_made(self) -> None:
        """To be called in replaying() once the iterator exists, which draws when it is made."""
        self._restore_start(made=True)

    def _restore_start(self, made: bool) -> None:
        # They are restored at the point at which they were captured: before the loader has made
        # its iterator, or after.
        if self._start is not None and self._start["made"] == made:
            torch.default_generator.set_state(_tensor(self._start["default"]))
            self._restore_samplers(self._start)

    def _restore_samplers(self, start: dict[str, Any]) -> None:
        for sampler, saved in zip(self._samplers, start["samplers"], strict=True):
            _restore_sampler(sampler, saved)

    def _capture(self) -> dict[str, Any]:
        # accelerate makes the first iterator before the first epoch, to know its first state.
        made = bool(getattr(self._loader.base_dataloader, "_initial_iter_for_state_dict", False))
        return {"default": _bytes(torch.default_generator), "made": made,
                "samplers": [_state_of(sampler) for sampler in self._samplers]}

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


def _state_of(sampler: Any) -> dict[str, Any]:
    generator = getattr(sampler, "generator", None)
    own = isinstance(generator, torch.Generator) and generator is not torch.default_generator
    return {"seed": getattr(sampler, "initial_seed", None),
            "generator": _bytes(generator) if own else None}


def _restore_sampler(sampler: Any, saved: dict[str, Any]) -> None:
    if saved["seed"] is not None:
        sampler.initial_seed = saved["seed"]
    if saved["generator"] is not None:
        if sampler.generator is None:
            sampler.generator = torch.Generator()
        sampler.generator.set_state(_tensor(saved["generator"]))


def _bytes(generator: torch.Generator) -> bytes:
    return generator.get_state().numpy().tobytes()


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
