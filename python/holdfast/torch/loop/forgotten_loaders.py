"""Finds DataLoaders that feed a plain training loop, and whose position is not saved.

One that feeds the training hands out batches from the same iterator before several calls of ck.step(),
while gradients are recorded. A validation reads its iterators to their ends between two calls. If the
samples are those of a loader that the Checkpointer was given, and that one is not read, then the program
reads it past its position, and every resume would go on with other batches: that is refused. (Steps that
can be made again have rules of their own: holdfast/torch/recover/unknown_loaders.py.)
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch

from holdfast.torch.data.read_batch import BatchReader
from holdfast.torch.data.read_loaders import listeners, name_of, watch_loaders
from holdfast.torch.loop.update_boundaries import UpdateBoundaries
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values.stored_attributes import stored

_TEXT = ("data: {name} feeds the training, and the Checkpointer was not given it: a resumed training may "
         "read other batches; expected data={name} (or a list or dict of all loaders)")
_PAST = ("data: the training reads past the loader that the Checkpointer has: {what}, and the position of "
         "what it reads is not saved; expected {line}")
_EARLY = "iter(loader) was called before the Checkpointer was made", "iter(loader) behind ck.resume()"
_ANOTHER = ("another DataLoader reads the same dataset",
            "`for batch in loader` with the one loader of data= in each epoch")


class ForgottenLoaders:
    """The loaders that were found by one Checkpointer: `sentences` has one for each, by name."""

    def __init__(self, state: TrainingState, boundaries: UpdateBoundaries,
                 saves: Callable[[Any], bool]) -> None:
        """`boundaries` counts the calls of ck.step(). `saves` says whether an object is given to the
        Checkpointer, perhaps inside of another one."""
        self._data, self._boundaries, self._saves = state.data, boundaries, saves
        # A loader of another library, which was given, may read through a DataLoader.
        self._is_off = state.data.stateful is not None and not state.data.are_own
        # When each iterator was first read, and how many batches the given loaders had handed out by then;
        # None once it was seen to feed the training.
        self._firsts: weakref.WeakKeyDictionary[Any, tuple[int, int] | None] = weakref.WeakKeyDictionary()
        self._refusal = ""
        self.has_news = False  # tell() was not called since something was found
        self.sentences: dict[str, str] = {}
        listeners.add(self)
        _live.add(self)
        watch_loaders()

    def tell(self, *, is_plain: bool) -> list[str]:
        """What is known so far.

        ValueError if the training reads past a loader that was given. Nothing is looked at in a loop
        that is not plain: a trainer knows its loaders, or the steps can be made again.
        """
        self._is_off |= not is_plain
        if self._refusal:
            raise ValueError(self._refusal)
        self.has_news = False
        return list(self.sentences.values())

    def note(self, iterator: Any) -> None:
        """An iterator of a DataLoader has handed out a batch."""
        if self._is_off or not torch.is_grad_enabled():
            return
        first = self._firsts.setdefault(iterator, (self._boundaries.call, self._data.handed_out))
        if first is not None and first[0] < self._boundaries.call:
            self._firsts[iterator] = None
            self._found_one(dict(stored(iterator)), self._data.handed_out > first[1])

    def note_end(self, iterator: Any) -> None:
        """An iterator of a DataLoader is at its end."""

    def _found_one(self, iterator: dict[str, Any], reads_given: bool) -> None:
        """`iterator` is what one has that feeds the training; `reads_given`: beside given loaders."""
        dataset, order = iterator.get("_dataset"), iterator.get("_index_sampler")
        is_ours = isinstance(dataset, BatchReader)
        dataset = dataset.dataset if is_ours else dataset
        sources = [source for _, source in self._data.sources() if source.dataset is dataset]
        if sources and is_ours:
            return
        if sources and not reads_given:
            is_early = any(source.sampler is order for source in sources)
            what, line = _EARLY if is_early else _ANOTHER
            self._refusal, self.has_news = _PAST.format(what=what, line=line), True
        elif is_ours and any(source.dataset is dataset for one in list(_live)
                             for _, source in one._data.sources()):
            return  # another Checkpointer of this process has it
        elif not any(map(self._saves, (dataset, order, dict(stored(order)).get("sampler")))):
            name = name_of(dataset)
            self.sentences[name], self.has_news = _TEXT.format(name=name), True


_live: "weakref.WeakSet[ForgottenLoaders]" = weakref.WeakSet()  # of all Checkpointers
