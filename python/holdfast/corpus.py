"""The user's own files as a dataset: `holdfast.data.Files`."""

import logging
import operator
import os
import sys
from collections.abc import Callable, Sequence
from os import PathLike, fsdecode
from typing import Any

from holdfast._native import Corpus
from holdfast.whole_number import whole_number

_log = logging.getLogger("holdfast")
# The dtypes of tokens as NumPy calls them.
_NUMPY = {"U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
          "U64": "<u8", "I64": "<i8", "F32": "<f4", "F64": "<f8"}


class Files:
    """The samples of files as they are, by number.

        corpus = holdfast.data.Files("c4/*.jsonl", transform=json.loads)
        tokens = holdfast.data.Files("tokens.bin", dtype="u16", context=2048)
        books = holdfast.data.Files("books_text_document", context=2048)   # of Megatron-LM
        pages = holdfast.data.Files("shards/*.tar")                        # of WebDataset
        loader = holdfast.data.loader(corpus, 256, seed=0)

    A sample of text is a line, as bytes without its end; blank lines are none. A sample of a tar
    archive is a dict: {"__key__": "a/17", "jpg": b"...", "cls": b"7"}, of the members that follow each
    other under one key; of TFRecord it is the bytes of a record. A sample of tokens
    is a NumPy array: `context` of them, or a document of Megatron files if `context` is not given.
    What is left of a file behind its last whole window is not read. `transform` makes of a sample
    what the training wants.

    Each file has an index beside it, or in the folder `index`. The first process that needs it makes
    it, as `holdfast index` does, and others wait. A file that has changed since then is refused.

    kind        "text", "tokens", "megatron", "tar" or "tfrecord", if the names do not tell.
    threads     how many samples of a batch are read at a time.
    """

    def __init__(
        self,
        *patterns: str | PathLike[str] | Sequence[str | PathLike[str]],
        transform: Callable[[Any], Any] | None = None,
        kind: str | None = None,
        context: int | None = None,
        dtype: str | None = None,
        index: str | PathLike[str] | None = None,
        threads: int = 8,
    ) -> None:
        if transform is not None and not callable(transform):
            raise TypeError(f"transform: {transform!r}; expected a function of a sample")
        self.transform = transform
        for name, word in (("kind", kind), ("dtype", dtype)):
            if not isinstance(word, str | None):
                raise TypeError(f"{name}={word!r}; expected a text, as \"u16\"")
        self._options = {
            "patterns": [fsdecode(one) for given in patterns
                         for one in (given if isinstance(given, (list, tuple)) else [given])], "kind": kind,
            "context": 0 if context is None else whole_number("context", context, least=1), "dtype": dtype,
            "index": None if index is None else fsdecode(index),
            "threads": whole_number("threads", threads, least=1, limit=1 << 31),
        }
        self._open()

    @property
    def fingerprint(self) -> str:
        """32 digits that change with any byte of the files, and with what a sample is."""
        return self._fingerprint

    @property
    def files(self) -> list[str]:
        """The files, in the order of their samples."""
        return self._corpus.files

    def __len__(self) -> int:
        return len(self._corpus)

    def __getitem__(self, index: int) -> Any:
        try:
            index = operator.index(index)
        except TypeError:
            raise TypeError(f"sample {index!r}; expected a whole number") from None
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index}; expected 0 or more, below {len(self)}")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples with these numbers, which are read together."""
        try:
            samples = self._corpus.read(indices)
        except TypeError:  # a tensor, or what is no number
            samples = self._corpus.read([whole_number("sample", one) for one in indices])
        for change in (self._decode, self.transform):
            if change is not None:
                samples = [change(one) for one in samples]
        return samples

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_corpus": None, "_decode": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __repr__(self) -> str:
        return f"Files({', '.join(map(repr, self._options['patterns']))}): {len(self)} samples"

    def _open(self) -> None:
        reporter = _Reporter()
        try:
            self._corpus = Corpus(**self._options, report=reporter)
        finally:
            reporter.close()
        # Where the loaders look for it (torch/data/fingerprint.py).
        before, self._fingerprint = getattr(self, "_fingerprint", None), self._corpus.fingerprint
        if before not in (None, self._fingerprint):
            raise ValueError(f"{self!r}: the fingerprint is {self._fingerprint}; expected {before}, as "
                             "in the process that this one is a copy of")
        self._decode = Corpus.fields_of if self._corpus.kind == "tar" else _decoder(self._corpus.dtype)


def _decoder(dtype: str | None) -> Callable[[bytes], Any] | None:
    if dtype is None:
        return None
    import numpy

    found = numpy.dtype(_NUMPY[dtype])
    return lambda one: numpy.frombuffer(bytearray(one), found)  # an array that can be written


class _Reporter:
    """Says on standard error how far a file is indexed, if that is a terminal; else once a file."""

    def __init__(self) -> None:
        self._shows = sys.stderr is not None and sys.stderr.isatty()
        self._file = ""

    def __call__(self, file: str, done: int, total: int) -> None:
        if self._shows:
            sys.stderr.write(f"\r\033[Kindex {os.path.basename(file)}  {done * 100 // (total or 1)} %")
        elif file != self._file:
            _log.info("data: indexes %s, %d bytes", file, total)
        self._file = file

    def close(self) -> None:
        if self._shows and self._file:
            sys.stderr.write("\r\033[K")
