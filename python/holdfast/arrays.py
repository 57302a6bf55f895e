"""Describes arrays to the native side: address, dtype, shape and strides.

An array is anything with numpy's __array_interface__, or a torch tensor, which is recognised by
its methods: this file imports neither torch nor numpy.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast import _native


class _View:
    """Where the elements of one array are."""

    def __init__(self, address: int, dtype: str, shape: tuple[int, ...],
                 strides: tuple[int, ...], readonly: bool) -> None:
        self.address = address
        self.dtype = dtype
        self.shape = shape
        self.strides = strides
        self.readonly = readonly


def describe(arrays: Mapping[str, Any], *, writable: bool = False) -> list[_native.Array]:
    """Describes the arrays, in order. Further names of the same memory become aliases.

    TypeError names the key of a value that is no array in main memory.
    """
    names: dict[tuple[object, ...], list[str]] = {}
    views: list[_View] = []
    for name, array in arrays.items():
        if not isinstance(name, str):
            raise TypeError(f"{name!r}: the name is a {type(name).__name__}; expected a str")
        view = _view(name, array)
        if writable and view.readonly:
            raise ValueError(f"{name}: read-only; expected memory that can be written to")
        same: tuple[object, ...] = (view.address, view.dtype, view.shape, view.strides)
        if view.address == 0 or 0 in view.shape:  # an empty array shares memory with no other
            same = (name,)
        if same not in names:
            names[same] = []
            views.append(view)
        names[same].append(name)
    return [
        _native.Array(first, view.address, view.dtype, view.shape, view.strides, aliases)
        for view, (first, *aliases) in zip(views, names.values(), strict=True)
    ]


def describe_one(name: str, array: Any, aliases: Iterable[str] = ()) -> _native.Array:
    """Describes one array under that name, with other names for it. It may be on a GPU."""
    on_device = getattr(array, "is_cuda", False)
    view = _torch_view(name, array, anywhere=True) if on_device else _view(name, array)
    return _native.Array(name, view.address, view.dtype, view.shape, view.strides,
                         list(aliases), on_device)


def _view(name: str, array: Any) -> _View:
    if hasattr(array, "data_ptr") and hasattr(array, "element_size"):
        return _torch_view(name, array)
    if hasattr(array, "__cuda_array_interface__"):
        raise TypeError(f"{name}: on a GPU; expected an array in main memory")
    _refuse_odd_numpy(name, array)
    interface = getattr(array, "__array_interface__", None)
    if not isinstance(interface, dict) or not isinstance(interface.get("data"), tuple):
        kind = f"{type(array).__module__}.{type(array).__name__}"
        raise TypeError(f"{name}: a {kind}; expected an array (other values go into objects)")
    return _numpy_view(name, array, interface)


def _torch_view(name: str, tensor: Any, anywhere: bool = False) -> _View:
    if tensor.device.type != "cpu" and not anywhere:
        raise TypeError(f"{name}: on {tensor.device}; expected a tensor in main memory")
    if hasattr(tensor, "device_mesh"):
        raise TypeError(f"{name}: distributed over ranks; expected a tensor of this process")
    if str(tensor.layout) != "torch.strided":
        raise TypeError(f"{name}: layout {tensor.layout}; expected torch.strided")
    if tensor.is_quantized:
        raise TypeError(f"{name}: quantized; expected plain elements")
    if tensor.is_conj() or tensor.is_neg():
        raise TypeError(f"{name}: conjugated or negated lazily; expected it resolved, "
                        "by resolve_conj() or resolve_neg()")
    size = tensor.element_size()
    return _View(tensor.data_ptr(), str(tensor.dtype).removeprefix("torch."),
                 tuple(tensor.shape), tuple(s * size for s in tensor.stride()), False)


def _refuse_odd_numpy(name: str, array: Any) -> None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return
    if isinstance(array, numpy.generic):  # its address is that of a temporary copy
        raise TypeError(f"{name}: a numpy scalar; expected an array")
    if isinstance(array, numpy.ma.MaskedArray):
        raise TypeError(f"{name}: a masked array; expected a plain one")


def _numpy_view(name: str, array: Any, interface: dict[str, Any]) -> _View:
    typestr: str = interface["typestr"]
    if not typestr[2:].isdigit() or typestr[1] == "O":
        raise TypeError(f"{name}: elements of type {typestr}; expected numbers")
    size = int(typestr[2:])
    if typestr[0] == ">" and size > 1:
        raise TypeError(f"{name}: big-endian ({typestr}); expected little-endian")
    dtype = getattr(array, "dtype", None)
    known = dtype is not None and hasattr(dtype, "name")
    address, readonly = interface["data"]
    shape = tuple(interface["shape"])
    strides = interface.get("strides") or _dense(shape, size)
    return _View(address, dtype.name if known else _name_of(typestr), shape,
                 tuple(strides), bool(readonly))


def _name_of(typestr: str) -> str:
    kinds = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
    kind = kinds.get(typestr[1], "void")
    return kind if kind == "bool" else f"{kind}{int(typestr[2:]) * 8}"


def _dense(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    strides: list[int] = []
    for extent in reversed(shape):
        strides.append(size)
        size *= max(extent, 1)
    return tuple(reversed(strides))
