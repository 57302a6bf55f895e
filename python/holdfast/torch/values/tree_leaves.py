"""The nodes of packed values that hold no other values, and the values that are made of them."""

from collections.abc import Callable
from typing import Any

import torch

from holdfast.torch.values.dtypes import dtype_from, named_dtype

TYPE = "holdfast:type"


def pack_text(value: str) -> Any:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, as file names may have
            return {TYPE: "str", "utf-8": value.encode(errors="surrogatepass")}
    return value


def pack_leaf(value: Any) -> Any:
    """The node of a value that holds no other values; None if its type is not known here."""
    kind = type(value)
    if kind is bytearray:
        return {TYPE: "bytearray", "data": bytes(value)}
    if kind is complex:
        return {TYPE: "complex", "parts": (value.real, value.imag)}
    if kind is range:
        return {TYPE: "range", "of": (value.start, value.stop, value.step)}
    if kind is slice and all(type(x) in (int, type(None)) for x in _limits(value)):
        return {TYPE: "slice", "of": _limits(value)}
    if kind is torch.Size:
        return {TYPE: "torch.Size", "of": list(value)}
    if kind is torch.dtype:
        return {TYPE: "torch.dtype", "of": str(value).removeprefix("torch.")}
    if kind is torch.device:
        return {TYPE: "torch.device", "of": str(value)}
    return None


def pack_generator(value: Any) -> Any:
    """The node of a random generator; None if the value is none."""
    from holdfast.torch.values import generators  # it uses this module

    if not generators.is_generator(value):
        return None
    node = {TYPE: "generator", "state": generators.capture_one("generator", value)}
    return {**node, "device": str(value.device)} if isinstance(value, torch.Generator) else node


def _make_generator(node: dict[str, Any]) -> Any:
    from holdfast.torch.values import generators

    return generators.new_generator(node["state"], node.get("device"))


MAKERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "int": lambda node: int(node["hex"], 16),
    "str": lambda node: node["utf-8"].decode(errors="surrogatepass"),
    "bytearray": lambda node: bytearray(node["data"]),
    "complex": lambda node: complex(*node["parts"]),
    "range": lambda node: range(*node["of"]),
    "slice": lambda node: slice(*node["of"]),
    "torch.Size": lambda node: torch.Size(node["of"]),
    "torch.dtype": lambda node: named_dtype(node["of"]),
    "torch.device": lambda node: torch.device(node["of"]),
    "generator": _make_generator,
    "numpy dtype": lambda node: dtype_from(node["dtype"]),
}


def _limits(value: slice) -> tuple[Any, Any, Any]:
    return value.start, value.stop, value.step
