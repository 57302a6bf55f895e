"""The random generators of a process as plain values, and how they are restored.

These are Python's global generator, NumPy's (once NumPy is imported), torch's for the CPU and for
every CUDA device (once CUDA is in use), and those that the caller names. The number of threads is
kept with them, because a sum over many elements has other bits on another number of threads.
"""

import random
import struct
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from holdfast.torch.values.global_generators import (
    GlobalCuda,
    GlobalNumpy,
    GlobalPython,
    GlobalTorch,
    pack_python,
    state_bytes,
)
from holdfast.torch.values.trees import pack, unpack

_ANY_SIZE = 1 << 62
_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_BLOCK = 624  # words that a Mersenne twister makes at once
_NEXT = struct.Struct("<QiiQ")  # the beginning of torch's state for the CPU, up to its position


def capture(extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The states of all generators, and of those in `extra` by their names.

    `extra` may have the kinds that is_generator() knows; TypeError names any other.
    """
    numpy = _numpy()
    return {
        "python": _pythons.capture(),
        "numpy": None if numpy is None else _numpys.capture(numpy),
        "torch": _torchs.capture(),
        "cuda": _cudas.capture(),
        "extra": {name: capture_one(name, one) for name, one in (extra or {}).items()},
        "threads": torch.get_num_threads(),
    }


def restore(saved: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> list[str]:
    """Sets all generators to what was captured.

    Call it after the loader's iterator exists: iter(DataLoader) draws from torch's generator.
    Returns, and warns of, differences from the captured process that may change bits of the run.
    ValueError for a state that a generator does not accept.
    """
    differences = _check_threads(saved["threads"])
    random.setstate(_unpack_python(saved["python"]))
    if saved["numpy"] is not None:
        import numpy

        numpy.random.set_state(unpack(saved["numpy"], {}))
    torch.set_rng_state(_tensor(saved["torch"]))
    differences += _restore_cuda(saved["cuda"])
    live = dict(extra or {})
    for name in sorted(live.keys() | saved["extra"].keys()):
        if name in live and name in saved["extra"]:
            differences += _restore_named(name, live[name], saved["extra"][name])
        else:
            where = "the checkpoint" if name in live else "this process"
            differences.append(f"generator {name}: not in {where}")
    for difference in differences:
        warnings.warn(difference, RuntimeWarning, stacklevel=2)
    return differences


def distances(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, int]:
    """How far generators were drawn from between two captures, by their names.

    One that has not moved is left out. The number is equal for equal draws; for other draws it is
    another one, except by chance, if the generator is Python's or torch's for the CPU.
    """
    kinds = [(name, before.get(name), after.get(name)) for name in ("python", "numpy", "torch", "cuda")]
    named = [(name, one, after["extra"].get(name)) for name, one in before["extra"].items()]
    return {name: (_position(then) - _position(now)) % _BLOCK for name, now, then in kinds + named
            if now != then}


def _position(state: Any) -> int:
    """How many words of its block a generator has used up, as far as that is easily seen."""
    if isinstance(state, (tuple, list)):  # Python's, one of those that have names, those of CUDA
        return sum(_position(one) for one in state)
    if not isinstance(state, bytes) or len(state) < _NEXT.size:
        return 0
    is_python = len(state) == (_BLOCK + 1) * 8
    return int.from_bytes(state[-8:], "little") if is_python else _NEXT.unpack_from(state)[-1]


def capture_for_order(extra: Mapping[str, Any]) -> dict[str, Any]:
    """The states of Python's and NumPy's generators and of those in `extra`, for a sampler's order."""
    numpy = _numpy()
    return {"python": _pythons.capture(),
            "numpy": None if numpy is None else _numpys.capture(numpy),
            "extra": {name: capture_one(name, one) for name, one in extra.items()}}


def restore_for_order(saved: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    """Sets what capture_for_order() has captured; generators that it does not know stay as they are."""
    random.setstate(_unpack_python(saved["python"]))
    if saved["numpy"] is not None:
        import numpy

        numpy.random.set_state(unpack(saved["numpy"], {}))
    restore_extra(saved["extra"], extra)


def restore_extra(saved: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    """Sets the generators in `extra` of which a state was saved."""
    for name in extra.keys() & saved.keys():
        _restore_one(name, extra[name], saved[name])


def seed_one(one: Any, seed: int) -> None:
    """Seeds a generator of one of the kinds that is_generator() knows."""
    if isinstance(one, torch.Generator):
        one.manual_seed(seed)
    elif hasattr(one, "bit_generator"):
        one.bit_generator.state = type(one.bit_generator)(seed).state
    else:
        one.seed(seed & 0xFFFFFFFF)


def is_generator(one: Any) -> bool:
    """True for torch.Generator, random.Random, numpy.random.Generator and RandomState."""
    numpy, kind = _numpy(), type(one)  # isinstance() would ask the object for its __class__
    return issubclass(kind, (torch.Generator, random.Random)) or (
        numpy is not None and issubclass(
            kind, (numpy.random.Generator, numpy.random.RandomState)))


def _check_threads(saved: int) -> list[str]:
    here = torch.get_num_threads()
    if here == saved:
        return []
    return [f"threads: {here}, and {saved} when it was saved, so sums may differ in bits; "
            f"expected torch.set_num_threads({saved}) or OMP_NUM_THREADS={saved}"]


def _restore_cuda(saved: list[bytes]) -> list[str]:
    count = torch.cuda.device_count() if saved else 0
    for device, state in enumerate(saved[:count]):
        torch.cuda.set_rng_state(_tensor(state), device)
    if count < len(saved):
        return [f"cuda: {count} devices, and {len(saved)} when it was saved"]
    return []


def capture_one(name: str, one: Any) -> Any:
    """The state of one generator as plain values; TypeError, with the name, for another object."""
    numpy = _numpy()
    if isinstance(one, torch.Generator):
        return ("torch", state_bytes(one.get_state()))
    if isinstance(one, random.Random):
        return ("python", pack_python(one.getstate()))
    if numpy is not None and isinstance(one, numpy.random.Generator):
        return ("numpy", _pack(one.bit_generator.state))
    if numpy is not None and isinstance(one, numpy.random.RandomState):
        return ("numpy legacy", _pack(one.get_state(legacy=False)))
    raise TypeError(f"generator {name}: a {type(one).__module__}.{type(one).__qualname__}; "
                    "expected torch.Generator, random.Random, numpy.random.Generator or "
                    "numpy.random.RandomState")


def new_generator(saved: tuple[str, Any], device: str | None = None) -> Any:
    """A new generator with a state that capture_one() returned."""
    kind, state = saved
    if kind == "torch":
        one: Any = torch.Generator(device or "cpu")
    elif kind == "python":
        one = random.Random()
    else:
        import numpy

        name = unpack(state, {})["bit_generator"]
        if name not in _BIT_GENERATORS:
            raise ValueError(f"a numpy generator over {name}; expected {', '.join(_BIT_GENERATORS)}")
        bits = getattr(numpy.random, name)(0)
        one = (numpy.random.Generator if kind == "numpy" else numpy.random.RandomState)(bits)
    _restore_one("generator", one, saved)
    return one


def _restore_named(name: str, one: Any, saved: tuple[str, Any]) -> list[str]:
    """Restores one; a path ("data.dataset.rng") is of one that nobody gave, and is never refused."""
    try:
        _restore_one(name, one, saved)
    except (TypeError, ValueError) as error:
        if "." not in name:
            raise
        return [f"generator {name}: not restored: {error}"]
    return []


def _restore_one(name: str, one: Any, saved: tuple[str, Any]) -> None:
    kind, state = saved
    if kind != capture_one(name, one)[0]:
        raise ValueError(f"generator {name}: a {type(one).__qualname__}; expected the {kind} "
                         "generator that was saved")
    if kind == "torch":
        one.set_state(_tensor(state))
    elif kind == "python":
        one.setstate(_unpack_python(state))
    elif kind == "numpy":
        one.bit_generator.state = unpack(state, {})
    else:
        one.set_state(unpack(state, {}))


def _unpack_python(saved: tuple[int, bytes, float | None]) -> tuple[Any, ...]:
    version, words, gauss = saved
    return version, struct.unpack(f"<{len(words) // 8}Q", words), gauss


def _pack(state: Any) -> Any:
    return pack(state, "generator", inline=_ANY_SIZE).tree


_pythons, _torchs, _cudas = GlobalPython(), GlobalTorch(), GlobalCuda()
_numpys = GlobalNumpy(_pack)


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _numpy() -> Any:
    numpy = sys.modules.get("numpy")
    return numpy if numpy is not None and hasattr(numpy, "random") else None
