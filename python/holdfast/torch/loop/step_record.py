"""Digests of what a training process holds, in a form that two processes can compare by name."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from holdfast import TensorName, _native
from holdfast.torch.state.piece import piece_of

_SHOWN = 60  # a value whose text is longer is compared by a digest


def seals_by_name(pieces: _native.Pieces) -> dict[str, str]:
    """The seals of pieces; several boxes of one tensor are numbered."""
    found: dict[str, str] = {}
    for name, seal in pieces.seals():
        count, key = 1, name
        while key in found:
            count += 1
            key = f"{name}#{count}"
        found[key] = seal
    return found


def digest_values(tree: Any) -> dict[str, str]:
    """The plain values of a tree by their paths ("things.scheduler.last_epoch")."""
    found: dict[str, str] = {}
    _digest(tree, "", found)
    return found


def digest_inputs(state: Any, leaves: list[Any]) -> str:
    """One digest of tensors and plain values, with the shapes and dtypes of the tensors."""
    texts, tensors = [], []
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            texts.append(f"{leaf.dtype}{tuple(leaf.shape)}")
            if _has_memory(leaf):
                tensors.append((piece_of(str(number), leaf, {}), str(number)))
        elif leaf is None or isinstance(leaf, bool | int | float | str):
            texts.append(repr(leaf))
    seals = _native.Pieces(state.describe(tensors)).seals() if tensors else []
    return digest_text(repr(texts)) + ":" + ".".join(seal for _, seal in seals)


def _has_memory(tensor: torch.Tensor) -> bool:
    """False for tensors without elements of their own: sparse ones, and those inside torch.func."""
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return False
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:
        return False


def _digest(value: Any, path: str, found: dict[str, str]) -> None:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            _digest(item, f"{path}.{key}" if path else str(key), found)
    elif isinstance(value, (list, tuple)) and value and len(value) <= 64:
        for number, item in enumerate(value):
            _digest(item, f"{path}.{number}", found)
    elif not isinstance(value, TensorName):
        text = repr(value)
        long = len(text) > _SHOWN
        found[path] = digest_text(text) if long else text


def digest_text(text: str) -> str:
    """A digest of a text, in 20 hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
