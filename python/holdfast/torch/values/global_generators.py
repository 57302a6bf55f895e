"""The global random generators of a process: what they hold, looked at often and cheaply.

Most training draws from few of them. Asking a generator for its state takes longer than to see in its
memory that nothing was drawn from it since the last time.
"""

import ctypes
import random
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

_LOW64 = (1 << 64) - 1


def state_bytes(state: torch.Tensor) -> bytes:
    """The bytes of what get_state() of a generator of torch returns."""
    return ctypes.string_at(state.data_ptr(), state.numel())


def pack_python(state: tuple[Any, ...]) -> tuple[int, bytes, float | None]:
    """What getstate() of a generator of Python returns, as plain values."""
    version, words, gauss = state
    return version, struct.pack(f"<{len(words)}Q", *words), gauss


class _Words:
    """A part of the memory of an object, which is read without asking the object."""

    def __init__(self, owner: Any, address: int, size: int) -> None:
        self._owner = owner  # its memory must not be given back
        self._memory = memoryview((ctypes.c_char * size).from_address(address))

    def now(self) -> bytes:
        """The bytes that are there now."""
        return self._memory.tobytes()

    def is_of(self, owner: Any) -> bool:
        """True if it is the memory of that object."""
        return self._owner is owner


class GlobalPython:
    """The state of Python's global generator, asked for only after something was drawn from it.

    A draw shows in the words that the generator keeps in memory, except for a second Gaussian,
    which it keeps apart.
    """

    def __init__(self) -> None:
        self._memory: _Words | None = None  # None if it is not laid out as expected
        self._words = b""  # as they were at the last capture
        self._packed: Any = None

    def capture(self) -> Any:
        source = random._inst
        if (self._memory is not None and self._memory.is_of(source) and source.gauss_next is None
                and self._memory.now() == self._words):
            return self._packed
        state = random.getstate()
        self._packed, self._memory = pack_python(state), None
        if state[2] is None:
            self._find_words(source, state[1])
        return self._packed

    def _find_words(self, source: random.Random, state: tuple[int, ...]) -> None:
        """How many words are used up, and 624 words follow the header of the object."""
        if len(state) != 625 or sys.getsizeof(source) < object.__basicsize__ + 625 * 4:
            return
        memory = _Words(source, id(source) + object.__basicsize__, 625 * 4)
        self._words = struct.pack("<I624I", state[-1], *state[:-1])
        self._memory = memory if memory.now() == self._words else None


class GlobalNumpy:
    """The state of NumPy's global generator, asked for only after something was drawn from it.

    Asking takes longer than for all other generators together, and most training never draws
    from it. A draw shows in the words that the generator keeps in memory, unless a second
    Gaussian, which it keeps apart, is still to be drawn.
    """

    def __init__(self, pack: Callable[[Any], Any]) -> None:
        """`pack` makes plain values of a state."""
        self._pack = pack
        self._memory: _Words | None = None  # None if it is not laid out as expected
        self._words = b""  # as they were at the last capture
        self._packed: Any = None

    def capture(self, numpy: Any) -> Any:
        source = numpy.random.get_bit_generator()
        if (self._memory is not None and self._memory.is_of(source)
                and self._memory.now() == self._words):
            return self._packed
        state = numpy.random.get_state(legacy=False)
        self._packed, self._memory = self._pack(state), None
        if not state.get("has_gauss") and state["bit_generator"] == "MT19937":
            self._find_words(source, state["state"])
        return self._packed

    def _find_words(self, source: Any, inner: Mapping[str, Any]) -> None:
        """624 words are in memory, and how many of them are used up."""
        memory = _Words(source, source.ctypes.state_address, 625 * 4)
        self._words = inner["key"].tobytes() + struct.pack("i", inner["pos"])
        self._memory = memory if memory.now() == self._words else None


class GlobalTorch:
    """The state of torch's generator for the CPU, asked for only after something was drawn from it.

    A draw shows in the memory of the generator, where 624 words are, and close behind them the
    second of two Gaussians. The first capture looks whether it is so in this version of torch.
    """

    def __init__(self) -> None:
        self._offset: int | None = None  # of the words in a generator; -1 if they are not found
        self._memory: _Words | None = None
        self._words = b""  # as they were at the last capture
        self._packed = b""

    def capture(self) -> bytes:
        source = torch.default_generator
        if self._offset is None:
            self._offset = _find_torch_words()
        if self._offset < 0:
            return state_bytes(source.get_state())
        if self._memory is None or not self._memory.is_of(source):
            self._memory, self._words = _torch_words(source, self._offset), b""
        now = self._memory.now()
        if now != self._words:
            self._words, self._packed = now, state_bytes(source.get_state())
        return self._packed


def _torch_words(generator: torch.Generator, offset: int) -> _Words:
    """The words, the numbers in front of them, and the second Gaussians behind them."""
    return _Words(generator, generator._cdata + offset - 20, 20 + 624 * 4 + 28)


def _find_torch_words() -> int:
    """The offset of the words in the memory of a generator; -1 if a draw does not show there."""
    if not hasattr(torch.Generator, "_cdata"):
        return -1
    one = torch.Generator("cpu")
    words = struct.pack("<624I", *struct.unpack_from("<624Q", state_bytes(one.get_state()), 24))
    for offset in range(20, 256, 4):
        if ctypes.string_at(one._cdata + offset, 64) == words[:64]:
            return offset if _shows_draws(one, _torch_words(one, offset)) else -1
    return -1


def _shows_draws(generator: torch.Generator, memory: "_Words") -> bool:
    """True if every draw shows, also that of a Gaussian for which no word is used."""
    seen = {memory.now()}
    for kind in (torch.float32, torch.float32, torch.float64, torch.float64):
        torch.empty(1, dtype=kind, device="cpu").normal_(generator=generator)
        seen.add(memory.now())
    torch.empty(1, device="cpu").uniform_(generator=generator)
    return len(seen | {memory.now()}) == 6


class GlobalCuda:
    """The states of the generators of all CUDA devices.

    A state is the seed and the offset, 8 bytes each. Reading these two numbers takes a tenth of
    the time of get_state(), which is called only once, to see that it agrees.
    """

    def __init__(self) -> None:
        self._known: dict[Any, bool] = {}  # generator: whether its state is those two numbers

    def capture(self) -> list[bytes]:
        if not torch.cuda.is_initialized():
            return []
        return [self._state_of(one) for one in torch.cuda.default_generators]

    def _state_of(self, generator: torch.Generator) -> bytes:
        known = self._known.get(generator)
        if known:
            return _seed_and_offset(generator)
        state = state_bytes(generator.get_state())
        if known is None:
            self._known[generator] = state == _seed_and_offset(generator)
        return state


def _seed_and_offset(generator: torch.Generator) -> bytes:
    return struct.pack("<Qq", generator.initial_seed() & _LOW64, generator.get_offset())
