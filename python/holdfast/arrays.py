"""Arrays as the native side takes them: address, dtype, shape and strides.

Anything with numpy's __array_interface__ serves, and torch's tensors, which are known by
their methods: nothing here imports torch or numpy.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast import _native


class _View:
    """One array: where its elements are."""

    def __init__(self, address: int, dtype: str, shape: tuple[int, ...],
                 strides: tuple[int, ...], readonly: bool) -> None:
        self.address = address
        self.dtype = dtype
        self.shape = shape
        self.strides = strides
        self.readonly = readonly


def describe(arrays: Mapping[str, Any], *, writable: bool = False) -> list[_native.Array]:
    """The arrays, in order; names of one and the same memory become ties of the first.

    Raises TypeError, naming the key, for what is no array in main memory.
    """
    names: dict[tuple[object, ...], list[str]] = {}
    views: list[_View] = []
    for name, array in arrays.items():
        if not isinstance(name, str):
            raise TypeError(f"{name!r}: a {type(name).__name__} for a name, want str")
        view = _view(name, array)
        if writable and view.readonly:
            raise ValueError(f"{name}: read-only, want memory to restore into")
        same: tuple[object, ...] = (view.address, view.dtype, view.shape, view.strides)
        if view.address == 0 or 0 in view.shape:  # shares its memory with nobody
            same = (name,)
        if same not in names:
            names[same] = []
            views.append(view)
        names[same].append(name)
    return [
        _native.Array(first, view.address, view.dtype, view.shape, view.strides, ties)
        for view, (first, *ties) in zip(views, names.values(), strict=True)
    ]


def describe_one(name: str, array: Any, ties: Iterable[str] = ()) -> _native.Array:
    """One array under that name, with other names for the same values; on a GPU too."""
    on_device = getattr(array, "is_cuda", False)
    view = _torch_view(name, array, anywhere=True) if on_device else _view(name, array)
    return _native.Array(name, view.address, view.dtype, view.shape, view.strides, list(ties),
                         on_device)


def _view(name: str, array: Any) -> _View:
    if hasattr(array, "data_ptr") and hasattr(array, "element_size"):
        return _torch_view(name, array)
    if hasattr(array, "__cuda_array_interface__"):
        raise TypeError(f"{name}: on a GPU, want an array in main memory")
    _refuse_odd_numpy(name, array)
    interface = getattr(array, "__array_interface__", None)
    if not isinstance(interface, dict) or not isinstance(interface.get("data"), tuple):
        kind = f"{type(array).__module__}.{type(array).__name__}"
        raise TypeError(f"{name}: a {kind}, want an array (what is no array goes into objects)")
    return _numpy_view(name, array, interface)


def _torch_view(name: str, tensor: Any, anywhere: bool = False) -> _View:
    if tensor.device.type != "cpu" and not anywhere:
        raise TypeError(f"{name}: on {tensor.device}, want a tensor in main memory")
    if hasattr(tensor, "device_mesh"):
        raise TypeError(f"{name}: distributed over ranks, want a tensor of this process")
    if str(tensor.layout) != "torch.strided":
        raise TypeError(f"{name}: layout {tensor.layout}, want torch.strided")
    if tensor.is_quantized:
        raise TypeError(f"{name}: quantized, want plain elements")
    if tensor.is_conj() or tensor.is_neg():
        raise TypeError(f"{name}: conjugated or negated lazily, want it resolved")
    size = tensor.element_size()
    return _View(tensor.data_ptr(), str(tensor.dtype).removeprefix("torch."),
                 tuple(tensor.shape), tuple(s * size for s in tensor.stride()), False)


def _refuse_odd_numpy(name: str, array: Any) -> None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return
    if isinstance(array, numpy.generic):  # its memory is a copy that dies at once
        raise TypeError(f"{name}: a numpy scalar, want an array")
    if isinstance(array, numpy.ma.MaskedArray):
        raise TypeError(f"{name}: a masked array, want a plain one")


def _numpy_view(name: str, array: Any, interface: dict[str, Any]) -> _View:
    typestr: str = interface["typestr"]
    if not typestr[2:].isdigit() or typestr[1] == "O":
        raise TypeError(f"{name}: elements of type {typestr}, want numbers")
    size = int(typestr[2:])
    if typestr[0] == ">" and size > 1:
        raise TypeError(f"{name}: big-endian ({typestr}), want little-endian")
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
