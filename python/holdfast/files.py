"""Files of tensors of any format, opened without loading them."""

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from holdfast import _native

if TYPE_CHECKING:
    import numpy

_Path = str | PathLike[str]

# What numpy has no type for is given as the bits of its elements.
_NUMPY = {
    "BOOL": "bool", "U8": "u1", "U16": "u2", "U32": "u4", "U64": "u8",
    "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8",
    "F16": "f2", "F32": "f4", "F64": "f8", "C64": "c8", "C128": "c16", "BF16": "u2",
}


class Contents(Mapping[str, _native.TensorInfo]):
    """The tensors of a file or checkpoint by name; open() makes it."""

    def __init__(self, path: _Path) -> None:
        self._native = _native.Contents(path)
        self._names = dict.fromkeys(self._native.names)

    def __getitem__(self, name: str) -> _native.TensorInfo:
        if name not in self._names:
            raise KeyError(name)
        return self._native.info(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def objects(self) -> Any:
        """What is no tensor, with a TensorName where one stands; None if there is nothing."""
        return self._native.objects

    @property
    def metadata(self) -> dict[str, str]:
        """What safetensors keeps as metadata."""
        return self._native.metadata

    def read(self, name: str, box: _native.Box | None = None) -> "numpy.ndarray[Any, Any]":
        """The tensor, or a box of it, as a numpy array.

        Elements that numpy has no type for (BF16 and the F8 family) come as their bits, in
        uint16 and uint8; contents[name].dtype says what they are.
        """
        import numpy

        info = self[name]
        kind = info.dtype.name
        shape = info.shape if box is None else box.shape
        array = numpy.empty(shape, _NUMPY.get(kind, "u1"))
        target = _native.Array(name, array.ctypes.data, kind, shape, array.strides, [])
        self._native.read_into(target, box)
        return array


def open(path: _Path) -> Contents:
    """Opens a file of tensors, a step's folder, a run (its newest whole step) or RUN@STEP.

    Reads headers only. The format is told by the contents, not by the name.

        >>> contents = holdfast.open("model.pt")
        >>> {name: info.shape for name, info in contents.items()}
        >>> weight = contents.read("fc.weight")
    """
    return Contents(path)


convert = _native.convert
