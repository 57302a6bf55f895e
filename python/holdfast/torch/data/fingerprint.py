"""A fingerprint of a dataset: two datasets of the same length have different ones.

No sample is read, because transforms draw random numbers. What counts is the name of the class, the
length, and parts of the arrays and of the lists of paths that the dataset holds as attributes, and
the datasets inside it. The work is bounded. Paths count without what they all begin with, so that a
dataset may move to another folder. Single values do not count: datasets count and remember things
while they are read.
"""

import hashlib
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import torch
from torch.utils.data import Dataset

_BLOCKS = 64  # of an array are looked at
_BLOCK = 64  # elements
_ITEMS = 512  # of a list
_MOST_DATASETS = 64
_DEEPEST = 4
_known: dict[int, tuple[Any, str]] = {}  # by the dataset's id: a weak reference, the fingerprint


def fingerprint_of(dataset: Any) -> str:
    """The fingerprint of a dataset, the same in each process. It is made once for each object."""
    found = _known.get(id(dataset))
    if found is not None and found[0]() is dataset:
        return found[1]
    text = _given(dataset) or _Digest().of(dataset)
    try:
        _known[id(dataset)] = (weakref.ref(dataset, lambda _, at=id(dataset): _known.pop(at, None)),
                               text)
    except TypeError:  # lists have no weak references
        pass
    return text


def check_fingerprint(state: Mapping[str, Any], ours: str, way_out: str = "") -> None:
    """ValueError if the state is of another dataset. A state without a fingerprint is accepted.

    `way_out` is what takes the dataset for the same one where the loader is a trainer's.
    """
    saved = state.get("fingerprint", ours)
    if saved != ours:
        raise ValueError(f"data: the dataset is not the one of the checkpoint (fingerprint {ours}, "
                         f"and {saved} was saved); expected the same dataset, or "
                         f"{way_out or f'holdfast.data.resumable(loader, fingerprint={saved!r})'} to "
                         "take it for the same")


def _given(dataset: Any) -> str:
    """The fingerprint that Hugging Face's datasets have; "" for others."""
    own = _attributes(dataset).get("_fingerprint")
    return own if isinstance(own, str) else ""


class _Digest:
    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self._datasets = 0

    def of(self, dataset: Any) -> str:
        self._add_dataset(dataset, 0)
        return self._hash.hexdigest()

    def _add(self, *parts: Any) -> None:
        self._hash.update(repr(parts).encode("utf-8", "backslashreplace"))

    def _add_dataset(self, dataset: Any, depth: int) -> None:
        self._datasets += 1
        length = _length_of(dataset)
        self._add("dataset", type(dataset).__qualname__, length, _given(dataset))
        if isinstance(dataset, (list, tuple, torch.Tensor)) or _is_array(dataset):
            self._add_value("", dataset, length, depth)
            return
        for name, value in sorted(_attributes(dataset).items(), key=lambda pair: str(pair[0])):
            self._add_value(str(name), value, length, depth)

    def _add_value(self, name: str, value: Any, length: int | None, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            self._add(name, str(value.dtype), tuple(value.shape))
            self._hash.update(_parts_of_tensor(value))
        elif _is_array(value):
            self._add(name, str(value.dtype), value.shape)
            self._hash.update(_parts_of_array(value))
        elif isinstance(value, Dataset):
            if depth < _DEEPEST and self._datasets < _MOST_DATASETS:
                self._add_dataset(value, depth + 1)
        elif type(value) in (list, tuple):
            self._add_list(name, value, length, depth)

    def _add_list(self, name: str, value: Sequence[Any], length: int | None, depth: int) -> None:
        picked = [value[at] for at in _spread(len(value), _ITEMS)]
        if any(isinstance(one, (Dataset, torch.Tensor)) or _is_array(one) for one in picked):
            if depth < _DEEPEST and not any(one is None for one in picked):  # a cache has gaps
                self._add(name, len(value))
                for one in picked[:_MOST_DATASETS]:
                    self._add_value(name, one, None, depth + 1)
        elif len(value) == length and all(map(_is_plain, picked)):
            self._add(name, len(value), _without_root(picked))


def _attributes(one: Any) -> dict[str, Any]:
    """The attributes that the object itself holds. No property is called."""
    try:
        return dict(object.__getattribute__(one, "__dict__"))
    except (AttributeError, TypeError, RuntimeError):
        return {}


def _length_of(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:
        return None


def _is_array(one: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(one, getattr(numpy, "ndarray", ()))


def _spread(length: int, most: int) -> list[int]:
    """Up to `most` places in something of that length, the first and the last among them."""
    if length <= most:
        return list(range(length))
    return sorted({at * (length - 1) // (most - 1) for at in range(most)})


def _parts_of_tensor(tensor: torch.Tensor) -> bytes:
    """Some blocks of a tensor in the memory of this process; nothing of others."""
    try:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
            return b""
        flat = tensor.detach().view(-1)
        return b"".join(flat[at : at + _BLOCK].contiguous().view(torch.uint8).numpy().tobytes()
                        for at in _starts(flat.numel()))
    except (RuntimeError, TypeError, ValueError):  # sparse, or not in one piece
        return b""


def _parts_of_array(array: Any) -> bytes:
    try:
        if array.dtype.hasobject or not array.flags.c_contiguous:
            return b""
        flat = array.reshape(-1)
        return b"".join(flat[at : at + _BLOCK].tobytes() for at in _starts(flat.size))
    except (RuntimeError, TypeError, ValueError):
        return b""


def _starts(elements: int) -> list[int]:
    return [at * _BLOCK for at in _spread(-(-elements // _BLOCK), _BLOCKS)]


def _is_plain(one: Any) -> bool:
    """True for a number, a text or a path, and for a tuple or list of a few such."""
    if type(one) in (list, tuple):
        return len(one) <= 8 and all(_is_plain(item) for item in one)
    return type(one) in (int, float, bool, str, bytes) or isinstance(one, PurePath)


def _without_root(items: list[Any]) -> list[Any]:
    """The items, with texts and paths cut by what all texts begin with."""
    items = [_as_text(one) for one in items]
    texts = [text for one in items for text in (one if isinstance(one, list) else [one])
             if isinstance(text, str)]
    root = len(os.path.commonprefix(texts)) if len(texts) > 1 else 0

    def cut(one: Any) -> Any:
        if isinstance(one, list):
            return [cut(item) for item in one]
        return one[root:] if isinstance(one, str) else one

    return [cut(one) for one in items]


def _as_text(one: Any) -> Any:
    if isinstance(one, (list, tuple)):
        return [_as_text(item) for item in one]
    return str(one) if isinstance(one, PurePath) else one
