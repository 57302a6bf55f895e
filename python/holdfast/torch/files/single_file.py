"""One file for a state dict, as with torch.save and torch.load, but without pickled code."""

import logging
import os
import tempfile
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from holdfast import Contents, Saver, Writing, convert, open
from holdfast.arrays import describe
from holdfast.torch.files.replace_folder import sync_folder
from holdfast.torch.values.dtypes import torch_dtype
from holdfast.torch.values.trees import pack, tensor_names_in, unpack

_Path = str | PathLike[str]

_log = logging.getLogger("holdfast")


def save(obj: Any, path: _Path) -> None:
    """Writes a state dict, or any tree of plain values, arrays and tensors, into one file.

    The ending of the name says the format: .safetensors, .pt and all others that convert()
    writes; torch.load(path, weights_only=True) reads the .pt. The file is whole and durable
    before it replaces an old one. TypeError names the key of a value that cannot be stored.

        >>> holdfast.save({"model": model.state_dict(), "step": 7}, "model.pt")
    """
    target = Path(path)
    packed = pack(obj, "", plain=True)
    tensors = {name: tensor.detach().cpu() for name, tensor in packed.tensors.items()}
    describe(tensors)  # refuses odd tensors by name before anything is written
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        run = Path(folder) / "run"
        with Saver(run, writing=Writing(space_reserve=0)) as saver:
            saver.save(0, tensors, packed.tree)
        made = Path(folder) / f"file{target.suffix}"
        convert(run, made)
        os.replace(made, target)
    sync_folder(target.parent)


def load(path: _Path, *, device: torch.device | str | None = None) -> Any:
    """Loads what save() or torch.save wrote, or any file that open() takes.

    Tensors are in main memory or on `device`, without gradients; names that shared one tensor
    share one again. If the file does not say where each tensor belongs, as in the run of a
    Checkpointer and in files made from one, the result is a flat dict by name ("model.weight",
    "ema.module.bias", "optimizer.weight.exp_avg"), and open() has the objects. No code of the
    file is run: an object of a class that is no plain data becomes a dict of its attributes with
    "__class__", and a warning in the log "holdfast" names it. So does one for a value that cannot
    be read: it is missing in a dict, and None in a list.
    """
    contents = open(path)
    for line in contents.simplified:
        _log.warning("load: %s: %s is read as plain data", path, line)
    for line in contents.left_out:
        _log.warning("load: %s: %s; it is left out", path, line)
    named = tensor_names_in(contents.objects)
    if {contents[name].name for name in named} == {info.name for info in contents.values()}:
        return unpack(contents.objects, _read(contents, named, device))
    return _read(contents, list(contents), device)


def _read(contents: Contents, names: list[str],
          device: torch.device | str | None) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    by_first_name: dict[str, torch.Tensor] = {}
    for name in names:
        info = contents[name]
        if info.name not in by_first_name:
            made = torch.empty(tuple(info.shape), dtype=torch_dtype(info.dtype))
            contents._native.read_into(describe({info.name: made})[0], None)
            by_first_name[info.name] = made if device is None else made.to(device)
        tensors[name] = by_first_name[info.name]
    return tensors
