"""Opens files of tensors of any format, without loading them."""

import logging
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from holdfast import _native
from holdfast.rehearse.plan import place_to_read

if TYPE_CHECKING:
    import numpy

_Path = str | PathLike[str]

_log = logging.getLogger("holdfast")

# Elements that numpy has no type for are returned as their bits.
_NUMPY = {
    "BOOL": "bool", "U8": "u1", "U16": "u2", "U32": "u4", "U64": "u8",
    "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8",
    "F16": "f2", "F32": "f4", "F64": "f8", "C64": "c8", "C128": "c16", "BF16": "u2",
}


def numpy_name(dtype: _native.Dtype) -> str:
    """The type in which numpy has such elements, or their bits."""
    return _NUMPY.get(dtype.name, "u1")


class Contents(Mapping[str, _native.TensorInfo]):
    """The tensors of a file or checkpoint, by name. open() returns it."""

    def __init__(self, path: _Path) -> None:
        self._native = _native.Contents(path)
        for folder, why in self._native.skipped:
            _log.warning("open: %s is passed over: %s", folder, why)
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
        """The values that are no tensors, with a TensorName in place of each tensor; or None."""
        return self._native.objects

    @property
    def simplified(self) -> list[str]:
        """Objects of a .pt file whose classes are not known here, as "name: class".

        No code of a file is ever run. Such an object is a dict in `objects`, with "__class__"
        and its attributes.
        """
        return self._native.simplified

    @property
    def left_out(self) -> list[str]:
        """What the file holds but Holdfast cannot read, as "name: why". All else can be read."""
        return self._native.left_out

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of a safetensors file."""
        return self._native.metadata

    def read(self, name: str, box: _native.Box | None = None) -> "numpy.ndarray[Any, Any]":
        """The tensor, or a box of it, as a numpy array.

        Elements that numpy has no type for (BF16 and the F8 family) are returned as their bits,
        in uint16 and uint8; contents[name].dtype says what they are. CorruptError if the file has
        digests and they do not match. A .pt file has one digest for each storage, so a box of a
        storage larger than 16 MiB is read unchecked. A step of a run is always checked.
        NotImplementedError says why for a tensor that is in `left_out`.
        """
        import numpy

        if name not in self._names:
            for line in self.left_out:
                if line.startswith(f"{name}: "):
                    raise NotImplementedError(line)
        info = self[name]
        kind = info.dtype.name
        shape = info.shape if box is None else box.shape
        array = numpy.empty(shape, numpy_name(info.dtype))
        target = _native.Array(name, array.ctypes.data, kind, shape, array.strides, [])
        self._native.read_into(target, box)
        return array


def open(path: _Path) -> Contents:
    """Opens a file of tensors, a step's folder, a run (its newest whole step) or RUN@STEP.

    Reads headers only. The contents decide the format, not the name. Newer steps of a run that
    are damaged are passed over, with a warning in the log "holdfast".

        >>> contents = holdfast.open("model.pt")
        >>> {name: info.shape for name, info in contents.items()}
        >>> weight = contents.read("fc.weight")
    """
    return Contents(place_to_read(path))
