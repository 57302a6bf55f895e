"""Opens and converts files of tensors of any format, without loading them."""

import logging
import os
from collections.abc import Iterator, Mapping
from os import PathLike, fspath
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


class Contents(Mapping[str, _native.TensorInfo]):
    """The tensors of a file or checkpoint, by name. open() returns it."""

    def __init__(self, path: _Path) -> None:
        self._native = _native.Contents(path)
        _warn("open", self._native.skipped)
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
        array = numpy.empty(shape, _NUMPY.get(kind, "u1"))
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


def convert(source: _Path, target: _Path) -> None:
    """Writes a file in another format, which the ending of the target's name says.

    The source is a file of any format, a step's folder, a run directory (its newest whole step)
    or RUN@STEP. Newer steps that are damaged are passed over, with a warning in the log
    "holdfast". ConflictError if the target exists. CorruptError if bytes are not those that were
    saved.
    """
    _warn("convert", _native.convert(source, target))


def export(
    source: _Path,
    target: _Path,
    *,
    format: str = "",
    config: _Path | None = None,
    dtype: Any = None,
    ema: bool = False,
    optimizer: bool = False,
    select: str = "",
    strip: str = "",
    adapter: str = "",
    shard_size: str | int = "5GB",
    ties: str = "",
) -> list[str]:
    """Writes the weights of a checkpoint as other tools read them, and returns notes on it.

    Names are those of the model's own state_dict(), without the words that DDP and torch.compile
    add. The source is as in convert(). From one that no Checkpointer has made, all tensors are
    taken as they are called.

        >>> holdfast.export("runs/gpt", "model.pt")
        >>> model.load_state_dict(torch.load("model.pt"))
        >>> holdfast.export("runs/gpt@400", "gpt/", config="config.json", dtype=torch.bfloat16)
        >>> AutoModelForCausalLM.from_pretrained("gpt/")

    format      "safetensors", "torch", "hf" (a folder for from_pretrained) or "peft" (the folder
                of an adapter); by default the target's name says it, and a folder is "hf".
    config      for folders: the model's config.json (adapter_config.json for "peft"), or a
                folder with it, from which tokenizer files are copied, too.
    dtype       what floating-point tensors are converted to: a torch dtype, or "bf16".
    ema         the average that the Checkpointer was given as ema=, instead of the weights.
    optimizer   what optimizer.load_state_dict() takes instead of weights, in a .pt file.
    select, strip
                patterns with *, with commas between them, of the names to export, and what is
                removed from the beginning of these names.
    adapter     the name of the PEFT adapter; by default the one that was active in the training,
                or the only one.
    shard_size  the most bytes of a file in a folder for "hf".
    ties        "each" stores tied weights under each name, "once" under the first. By default
                they are one tensor in a .pt file, and stored under each name in a .safetensors
                file and once in a folder.
    """
    name = str(dtype).removeprefix("torch.") if dtype is not None else ""
    skipped, notes = _native.export(source, target, {
        "format": format, "config": "" if config is None else fspath(config), "dtype": name,
        "ema": ema, "optimizer": optimizer, "select": select, "strip": strip,
        "adapter": adapter, "shard_size": str(shard_size), "ties": ties,
    })
    _warn("export", skipped)
    return notes


def _warn(what: str, skipped: list[tuple[str, str]]) -> None:
    for folder, why in skipped:
        _log.warning("%s: %s is passed over: %s", what, folder, why)
