"""The data loaders of a training: none, one, or several by name.

Several loaders are read together (zip) or in turn. They have one state, that of all of them, and
the random generators are restored once for all.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.torch.data.base_loader import Loader
from holdfast.torch.data.foreign_loader import ForeignLoader
from holdfast.torch.data.left_epoch import LeftEpoch
from holdfast.torch.data.plain_loader import adopt_plain
from holdfast.torch.data.source import Source
from holdfast.torch.values.stored_attributes import stored

_log = logging.getLogger("holdfast")
_FOREIGN = "loader with a state_dict of its own"
_UNREAD = ("data: steps are made without a batch from the loader that the Checkpointer has, so a "
           "resumed training may read other batches; expected iter(loader) after ck.resume(), one "
           "loader for all epochs, and one ck.step() for each batch")


class Loaders:
    """The loaders that a Checkpointer was given as `data=`; plain DataLoaders become resumable."""

    def __init__(self, data: Any) -> None:
        given = _by_name(data)
        self._is_one = list(given) == [""]
        self._own: dict[str, Loader] = {}
        self._foreign: dict[str, ForeignLoader] = {}
        self._all: dict[str, Any] = {}
        # What a trainer reads, and saves the positions of; None while it has made none yet.
        self.read_by_trainer: list[Any] | None = []
        self._without_batch = 0  # steps in sequence that have read nothing
        self._restores: list[Callable[[], Any]] = []  # to be called once an iterator exists
        for name, one in given.items():
            one = adopt_plain(one)
            _check(_path(name), one)
            if isinstance(one, Loader):
                one.follow()
                one.has_partners = len(given) > 1
                self._own[name] = self._all[name] = one
            else:
                self._foreign[name] = ForeignLoader(one)
                self._all[name] = one
        if len({id(one) for one in self._all.values()}) < len(self._all):
            raise ValueError("data: the same loader twice; expected each loader once")

    @property
    def stateful(self) -> Any:
        """What is saved: an object with a state_dict, a dict of several, None if there is nothing."""
        members = {name: one if name in self._own else self._foreign[name].stateful
                   for name, one in self._all.items()}
        return members.get("") if self._is_one else members or None

    @property
    def kinds(self) -> dict[str, str]:
        """What users call the loaders. Those of others are one kind: their states are not known."""
        return {name: one.kind if isinstance(one, Loader) else _FOREIGN
                for name, one in self._all.items()}

    @property
    def each(self) -> list[Any]:
        """The loaders, whatever their kinds are."""
        return list(self._all.values())

    @property
    def per_rank(self) -> bool:
        """True if each rank has a position of its own."""
        return any(getattr(one, "per_rank", True) for one in self._all.values())

    @property
    def are_own(self) -> bool:
        """True if there are loaders, all of Holdfast: their batches can be handed out again."""
        return bool(self._all) and not self._foreign

    @property
    def foreign(self) -> list[Any]:
        """The loaders that save their state themselves."""
        return [self._all[name] for name in self._foreign]

    @property
    def first(self) -> Loader | None:
        """The first loader of Holdfast, whose epochs are those of the training; None without one."""
        return next(iter(self._own.values()), None)

    def position_text(self) -> str:
        """Text for a message that names the epochs; "" if they are not known."""
        epochs = {name: getattr(one, "epoch", None) for name, one in self._all.items()}
        texts = [f"{epoch}" if self._is_one else f"{epoch} of {_path(name)}"
                 for name, epoch in epochs.items() if isinstance(epoch, int)]
        return f", in epoch {' and '.join(texts)}" if texts else ""

    def use_generators(self, beside: Mapping[str, Any]) -> None:
        """Notes the generators beside those of the process that are saved, in a dict that may grow."""
        for one in self._own.values():
            one.generators = beside

    def keep_left_epochs(self, run: str, rank: int) -> None:
        """From now on, the run has a note of an epoch that its loop has left early."""
        for number, one in enumerate(self._own.values()):
            one.left_epoch = LeftEpoch(run, rank, number)

    def close(self) -> None:
        """Ends that."""
        for one in self._own.values():
            if one.left_epoch is not None:
                one.left_epoch.close()
                one.left_epoch = None

    def sources(self) -> list[tuple[str, Source]]:
        """What the loaders read with, by name; nothing that a loader of another kind may save."""
        others = self.read_by_trainer or []
        known = {**self._all, **{str(number) if len(others) > 1 else "": one
                                 for number, one in enumerate(others)}}
        return [(".".join(filter(None, ("data", name, inner))), source)
                for name, one in known.items() for inner, source in _sources_of(one).items()]

    # What the training does

    def note_update(self) -> None:
        """An optimizer has made an update."""
        for one in self._own.values():
            one.note_update()

    def note_step(self) -> None:
        """ck.step() was called. Warns if the training does not read the loaders."""
        if not self._own:
            return
        batches = [one.note_step() for one in self._own.values()]
        self._without_batch = 0 if any(batches) or not self.are_own else self._without_batch + 1
        if self._without_batch == 3:  # in the second call, what reads past it was refused
            _log.warning("%s", _UNREAD)

    def note_save(self) -> None:
        """ck.save() was called."""
        for one in self._own.values():
            one.note_save()

    def note_end(self) -> None:
        """What is saved next is the last step of the training."""
        for one in self._own.values():
            one.note_end()

    # Generators

    def stop_restoring(self) -> None:
        """Called at a save: by then training reads the loaders."""
        for one in self._foreign.values():
            one.stop_restoring()

    @property
    def draws(self) -> Any:
        """Whether reading a batch draws, for each loader that is not Holdfast's."""
        draws = {name: one.draws for name, one in self._foreign.items()}
        return draws.get("") if self._is_one else draws

    @property
    def awaits_iterator(self) -> bool:
        """True if generators are still to be restored, when an iterator exists."""
        return bool(self._restores)

    def restore_after_iter(self, restore: Callable[[], Any], draws: Any) -> list[str]:
        """Calls `restore` once the iterators exist. Returns why the run may differ in bits."""
        if not self._all:
            restore()
        self._restores = [restore] if self._own else []

        def restore_once() -> None:
            if self._restores:
                self._restores.pop()()

        for one in self._own.values():
            one.after_iter = restore_once
        known = draws if isinstance(draws, Mapping) else {"": draws}
        inexact = [line for name, one in self._foreign.items()
                   for line in one.resumed(restore, known.get(name))]
        if self._foreign and len(self._all) > 1:
            inexact.append("generators: restored when each of several loaders begins, and an epoch "
                           "that begins before that may have another order; expected loaders of "
                           "holdfast.data or plain DataLoaders")
        return inexact

    # For steps that may have to be made again

    @property
    def handed_out(self) -> int:
        """How many batches all loaders have handed out."""
        return sum(one.handed_out for one in self._own.values())

    def listen(self, begin: Callable[[], Any], request: Callable[[], Any]) -> Callable[[], None]:
        """Has functions called when a pass begins and when a batch is asked for. Returns what ends that."""
        listener = begin, request
        for one in self._own.values():
            one.listeners = (*one.listeners, listener)

        def end() -> None:
            for one in self._own.values():
                one.listeners = tuple(kept for kept in one.listeners if kept is not listener)

        return end

    def keep_batches(self, on_batch: Callable[[Any], None]) -> None:
        """Keeps the batches that are handed out from now on, and calls on_batch with each."""
        for one in self._own.values():
            one.keep_batches(on_batch)

    def forget_batches(self) -> None:
        """Ends what keep_batches() began."""
        for one in self._own.values():
            one.forget_batches()

    def hand_out_again(self) -> bool:
        """The next batches are those that were handed out since keep_batches(). False if not."""
        return all([one.hand_out_again() for one in self._own.values()])


def _sources_of(data: Any) -> Mapping[str, Source]:
    return data.sources() if isinstance(data, Loader) else {"": _source_of_foreign(data)}


def _source_of_foreign(data: Any) -> Source:
    held = dict(stored(data))
    parts = [held.get(name) for name in ("dataset", "collate_fn")]
    workers = held.get("num_workers")
    return Source(*(None if _has_state_dict(part) else part for part in parts),
                  workers=workers if type(workers) is int else 0)


def _has_state_dict(part: Any) -> bool:
    return any("state_dict" in vars(one) for one in type(part).__mro__)


def _by_name(data: Any) -> dict[str, Any]:
    if data is None:
        return {}
    if isinstance(data, (list, tuple)):
        return {str(number): one for number, one in enumerate(data)}
    if isinstance(data, Mapping) and not hasattr(data, "state_dict"):
        return {str(name): one for name, one in data.items()}
    return {"": data}


def _path(name: str) -> str:
    return f"data.{name}" if name else "data"


def _check(where: str, data: Any) -> None:
    if callable(getattr(data, "state_dict", None)):
        return
    kind = f"{type(data).__module__}.{type(data).__qualname__}"
    raise TypeError(f"{where}: a {kind} without state_dict(); expected a torch DataLoader, "
                    "holdfast.data.loader(dataset, batch_size=...), or an iterable with "
                    "state_dict() and load_state_dict(), which tell and set its position")
