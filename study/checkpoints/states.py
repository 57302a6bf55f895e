"""The states that engines save in the crash experiment, and what a loaded state is. Needs only NumPy.

State 1 is saved first, whole. State 2 is the one whose save is cut short. A step number decides each element, so
that a loaded state is known to be the one, the other, or a mixture.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

State = dict[str, np.ndarray]

# The shapes of what is saved now. Each measurement is a process of its own, in which use() may change them.
SHAPES: dict[str, tuple[int, ...]] = {f"w{i}": (128, 256) for i in range(6)} | {"b": (256,), "n": (1,)}
FIRST, SECOND = 1, 2

# How an engine's own way to resume ends.
NEWEST, PREVIOUS = "newest", "previous"
ANEW = "starts anew"  # without a word, as if nothing had been saved
REFUSES = "refuses"  # an older one is whole, and it needs a person to choose that
LOST = "lost"  # nothing can be loaded
WRONG = "wrong"  # it loads something that nobody has saved
CRASHES, HANGS = "crashes", "hangs"
NOTICED, HARMLESS = "noticed", "harmless"  # a flipped bit: an error or an older checkpoint; the same values all the same
VERDICTS = (NEWEST, PREVIOUS, ANEW, REFUSES, LOST, WRONG, CRASHES, HANGS)


class OlderIsWhole(Exception):
    """The newest checkpoint cannot be loaded, and the one before it can, by hand."""


def make_state(step: int) -> State:
    dice = np.random.RandomState(step)
    return {name: dice.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def use(state: State) -> None:
    """From now on, engines load states of these shapes."""
    SHAPES.clear()
    SHAPES.update({name: array.shape for name, array in state.items()})


def dtype_of(name: str) -> Any:
    return np.int64 if name.endswith("num_batches_tracked") else np.float32


def blank() -> State:
    """Arrays into which a state can be loaded."""
    return {name: np.zeros(shape, dtype_of(name)) for name, shape in SHAPES.items()}


def is_same(found: Mapping[str, Any] | None, wanted: State) -> bool:
    """Whether all bytes are equal."""
    return found is not None and set(found) == set(wanted) and all(
        np.asarray(found[name]).tobytes() == wanted[name].tobytes() for name in wanted)


def judge(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ANEW
    for step, verdict in ((SECOND, NEWEST), (FIRST, PREVIOUS)):
        wanted = make_state(step)
        if set(found) == set(wanted) and all(_is_equal(found[name], wanted[name]) for name in wanted):
            return verdict
    return WRONG


def is_previous(load: Any) -> bool:
    """Whether what `load` returns is state 1. It may raise."""
    try:
        return judge(load()) == PREVIOUS
    except BaseException:  # noqa: BLE001: a rival may fail in any way
        return False


def _is_equal(found: Any, wanted: np.ndarray) -> bool:
    found = np.asarray(found)
    return found.size == wanted.size and bool(np.array_equal(found.reshape(wanted.shape), wanted))
