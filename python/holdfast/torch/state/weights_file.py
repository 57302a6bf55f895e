"""Loads the weights of a file, or of another run, into a model: `holdfast.load_into`.

The names in a file may begin with words that the model does not have ("model.", "state_dict.",
"module."): what most names begin with is left out. Each rank reads only the parts of tensors that
it holds.
"""

from collections import Counter
from collections.abc import Iterable
from os import PathLike
from typing import NamedTuple

import torch

from holdfast import Contents, open
from holdfast.arrays import describe
from holdfast.torch.state.piece import Piece
from holdfast.torch.state.report import Report
from holdfast.torch.state.tensor_state import Models, TensorState
from holdfast.torch.values.all_ranks import all_ranks
from holdfast.torch.values.dotted_names import name_a_few, own_name, plain_name
from holdfast.torch.values.dtypes import torch_dtype

_Path = str | PathLike[str]

_ROOT = "model."  # what names of a model's tensors begin with in a checkpoint
# What names in files often begin with. Of two that fit equally well, the first is taken.
_USUAL = ("", "model.", "state_dict.", "model_state_dict.", "module.")
_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}


class LoadedWeights(NamedTuple):
    """What load_into() could not match, which is nothing if it was strict."""

    missing: list[str]  # tensors of the model that the file does not have; they are unchanged
    unexpected: list[str]  # tensors of the file that the model does not have


def load_into(model: Models, path: _Path, *, strict: bool = True) -> LoadedWeights:
    """Fills a model with the weights of a file or of a run, whatever wraps or shards the model.

        >>> holdfast.load_into(model, "model.safetensors")

    The path is a .pt or .safetensors file, a folder of Hugging Face, a file of Lightning, a run
    (its newest whole step) or RUN@STEP. Only weights and buffers are read, and no code of the file
    is run. If the dtypes differ, values are converted. If there is a process group, call it on all
    its ranks. ValueError, on all ranks and before anything is changed, if a shape differs, or if
    names are missing or unexpected and `strict` is True.
    """
    return load_weights(TensorState(model), path, strict=strict)


def load_weights(tensors: TensorState, path: _Path, *, strict: bool = True) -> LoadedWeights:
    """load_into() for a model whose tensors are known already."""
    pieces = [piece for piece in tensors.pieces() if piece.kind in ("parameter", "buffer")]
    live = {name.removeprefix(_ROOT) for entry in tensors.entries
            for name in (entry.name, *entry.aliases)}
    transient = {name.removeprefix(_ROOT) for name in tensors.transient}
    error: Exception | None = None
    try:
        weights = _WeightsFile(path)
    except Exception as failure:  # told to all ranks before it is raised
        error = failure
    ranks = all_ranks((None if error is None else str(error), live))
    if error is not None:
        raise error
    for rank, (text, _) in enumerate(ranks):
        if text is not None:
            raise ValueError(f"rank {rank}: {text}")
    known = set().union(*(names for _, names in ranks))
    weights.match(known)
    missing, reshaped = weights.compare(pieces, transient)
    lists = all_ranks((missing, reshaped))
    missing = _once(name for one, _ in lists for name in one)
    reshaped = _once(line for _, one in lists for line in one)
    report = Report(missing, weights.unexpected(known), reshaped)
    if reshaped or (strict and not report.exact):
        way_out = "" if reshaped else "; strict=False leaves that out"
        raise ValueError(f"{path}: {report}{way_out}")
    if len(missing) == len(known):
        raise ValueError(f"{path}: has none of the model's tensors; expected weights of this "
                         f"model, such as {name_a_few(sorted(known))}")
    with torch.no_grad():
        for piece in pieces:
            weights.fill(piece)
    return LoadedWeights(missing, report.unexpected)


class _WeightsFile:
    """The tensors of a file, by the names that a model has for them."""

    def __init__(self, path: _Path) -> None:
        self._contents: Contents = open(path)
        self._names: dict[str, str] = {}  # without the words of wrappers -> in the file
        for name in self._contents:
            if plain_name(name) == name or name == own_name(plain_name(name), 0):
                self._names.setdefault(_without_wrappers(plain_name(name)), name)
        self._prefix = ""

    def match(self, live: set[str]) -> None:
        """Finds what the names of the model's tensors begin with in the file."""
        counts: Counter[str] = Counter()
        for name in self._names:
            words = name.split(".")
            for k in range(len(words)):
                if ".".join(words[k:]) in live:
                    counts[".".join([*words[:k], ""])] += 1
        self._prefix = max(counts, key=lambda one: (counts[one], -_rank_of(one), -len(one)),
                           default="")

    def compare(self, pieces: list[Piece], transient: set[str]) -> tuple[list[str], list[str]]:
        """(names that the file does not have, sentences about tensors of another shape)."""
        missing, reshaped = [], []
        for piece in pieces:
            name, found = piece.name.removeprefix(_ROOT), self._find(piece)
            if piece.tensor.is_meta:
                reshaped.append(f"{name} is on the meta device; expected memory (to_empty())")
            elif found is None:
                missing += [] if name in transient else [name]
            elif list(self._contents[found].shape) != list(piece.shape):
                reshaped.append(f"{name} is {list(self._contents[found].shape)}; expected "
                                f"{list(piece.shape)}")
        return missing, reshaped

    def unexpected(self, live: set[str]) -> list[str]:
        """Names of the file that the model does not have, of those that begin alike."""
        return [name.removeprefix(self._prefix) for name in self._names
                if name.startswith(self._prefix) and name.removeprefix(self._prefix) not in live]

    def fill(self, piece: Piece) -> None:
        """Reads what this rank holds of a tensor."""
        found = self._find(piece)
        if found is None or piece.tensor.numel() == 0:
            return
        made = torch.empty(piece.tensor.shape, dtype=torch_dtype(self._contents[found].dtype))
        self._contents._native.read_into(describe({found: made})[0], piece.box)
        piece.tensor.copy_(made)

    def _find(self, piece: Piece) -> str | None:
        for name in (piece.name, *piece.aliases):
            found = self._names.get(self._prefix + name.removeprefix(_ROOT))
            if found is not None:
                return found
        return None


def _without_wrappers(name: str) -> str:
    return ".".join(word for word in name.split(".") if word not in _WRAPPERS)


def _rank_of(prefix: str) -> int:
    return _USUAL.index(prefix) if prefix in _USUAL else len(_USUAL)


def _once(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
