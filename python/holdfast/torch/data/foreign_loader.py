"""Restores the random generators at the right moment for loaders that are not Holdfast's own.

Such a loader is an object with state_dict() and load_state_dict(). When it resumes in the middle
of an epoch, it draws from the generators of the process for two purposes. What it draws to read a
batch, an uninterrupted run draws as well. What it draws to begin again, an uninterrupted run does
not draw there. So the generators are restored between the two, as far as that moment can be seen
from outside:

- by resume() itself, for a loader that is read by a method such as next_batch();
- again when iter(loader) has returned, because torch's DataLoader draws inside iter();
- if iter(loader) is a Python generator, which does nothing before its first batch is requested:
  just before that, and again whenever it makes the iterator of a DataLoader on the way to it;
- once more after its first batch, if reading batches was seen to draw nothing, or if there was no
  batch left in the epoch: then all that was drawn belongs to the beginning.
"""

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from holdfast.torch.data.accelerate_loader import AccelerateLoader, is_accelerated
from holdfast.torch.values import generators
from holdfast.torch.values.stored_attributes import stored

_LOOKED_AT = 16  # so many batches are watched, until one is seen to draw


class ForeignLoader:
    """Watches the first iteration of a loader in this process, and after each resume()."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._order = AccelerateLoader(data) if is_accelerated(data) else None
        self._watching = False
        self._restore: Callable[[], Any] | None = None
        self._hook: Any = None  # on optimizer steps, while generators may be restored again
        # Whether reading a batch draws from the generators; None if that is not known yet.
        self.draws: bool | None = None
        if inspect.isgeneratorfunction(getattr(type(data), "__iter__", None)):
            self._watch()

    @property
    def stateful(self) -> Any:
        """The object to save and load: the loader, or an AccelerateLoader around it."""
        return self._order or self._data

    def resumed(self, restore: Callable[[], Any], draws: bool | None) -> list[str]:
        """Calls `restore` now, and again when it is due. Returns why the run may differ in bits."""
        restore()
        self._restore, self.draws = restore, draws
        self._hook = self._hook or _hook_first_update(self)
        kind = type(self._data)
        if hasattr(kind, "__iter__") and not self._watch():
            return [f"generators: restored before a {kind.__name__} is iterated, which may draw "
                    "from them to begin anew"]
        return self._draws_of_workers() if self._order is None else self._order.inexact(draws)

    def _draws_of_workers(self) -> list[str]:
        """A sentence if the loader has workers, whose generators it seeds anew when it resumes."""
        workers = dict(stored(self._data)).get("num_workers")
        if type(workers) is not int or workers <= 0:
            return []
        return [f"data: the {workers} workers of a {type(self._data).__name__} seed their generators "
                "anew: if the dataset draws, it draws other numbers than before; expected "
                "num_workers=0, or holdfast.data.loader, which seeds them for every sample"]

    def stop_restoring(self) -> None:
        """Called at a save: by then training reads the loader, so nothing is restored any more."""
        self._restore = None
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _watch(self) -> bool:
        """Replaces the loader's class by a subclass that notices iter(), until it is called."""
        if self._watching:
            return True
        kind: Any = type(self._data)
        kind = vars(kind).get("_watched", kind)  # the class under that of another Checkpointer

        def make_iterator(data: Any) -> Any:
            _set_class(data, kind)
            self._watching = False
            return self._begun(kind.__iter__(data))

        members = {"__iter__": make_iterator, "__module__": kind.__module__, "__slots__": (),
                   "_watched": kind}
        with contextlib.suppress(TypeError):  # some classes have no subclasses
            _set_class(self._data, type(kind.__name__, (kind,), members))
            self._watching = True
        return self._watching

    def _begun(self, made: Any) -> Any:
        restore, self._restore = self._restore, None
        if restore is not None:
            restore()
        elif self._order is not None and self._order.resumes_mid_epoch:
            restore = functools.partial(generators.restore, generators.capture())
        # An iterator of the loader's own class is returned as it is: it drew when it was made.
        return self._read(made, restore) if type(made).__module__ == "builtins" else made

    def _read(self, made: Iterator[Any], restore: Callable[[], Any] | None) -> Iterator[Any]:
        with contextlib.suppress(StopIteration):
            yield next(made) if restore is None else self._first(made, restore)
            for _ in range(_LOOKED_AT):
                if self.draws:
                    break
                before = generators.capture()
                batch = next(made)
                self.draws = before != generators.capture()
                yield batch
        yield from made

    def _first(self, made: Iterator[Any], restore: Callable[[], Any]) -> Any:
        restore()
        if self._order is not None:
            return self._first_of_accelerate(made, restore, self._order)
        try:
            with _behind_new_iterators(restore):
                batch = next(made)
        except StopIteration:  # the epoch had ended, and no batch was read
            restore()
            raise
        if self.draws is False:
            restore()
        return batch

    def _first_of_accelerate(self, made: Iterator[Any], restore: Callable[[], Any],
                             order: AccelerateLoader) -> Any:
        if not order.resumes_mid_epoch:
            return next(made)  # an epoch begins here, and nothing is to be repeated
        with order.replaying(), _behind_new_iterators(order.iterator_made):
            batch = next(made)
        restore()
        return batch


def _hook_first_update(foreign: ForeignLoader) -> Any:
    """Forgets `restore` at the first update.

    The hook stays until the next save, because hooks cannot be removed while they are called.
    """
    ref = weakref.ref(foreign)

    def forget(*_: Any) -> None:
        live = ref()
        if live is not None:
            live._restore = None

    return register_optimizer_step_pre_hook(forget)


def _set_class(thing: Any, kind: type) -> None:
    """Sets the class even if a property hides __class__, as in accelerate's loaders."""
    vars(object)["__class__"].__set__(thing, kind)


@contextlib.contextmanager
def _behind_new_iterators(call: Callable[[], Any]) -> Iterator[None]:
    """While the block runs, calls `call` after each iterator that a torch DataLoader makes."""
    found = {kind: vars(kind)["__iter__"] for kind in _kinds_of_loaders(DataLoader)
             if "__iter__" in vars(kind)}

    def calling(own: Any) -> Any:
        def make_iterator(loader: Any) -> Any:
            made = own(loader)
            if not inspect.isgenerator(made):
                call()
            return made

        return make_iterator

    for kind, own in found.items():
        kind.__iter__ = calling(own)
    try:
        yield
    finally:
        for kind, own in found.items():
            kind.__iter__ = own


def _kinds_of_loaders(kind: Any) -> list[Any]:
    return [kind, *(found for one in kind.__subclasses__() for found in _kinds_of_loaders(one))]
