"""The random generators that a checkpoint has beside those of the process.

These are the ones that the caller gave, and the ones that nobody gave and that are found in the model,
in what the loader reads with, in the variables of the program, and in the given objects whose own state
leaves them out (found_generators.py). A found generator is saved under its path, such as
"data.dataset.rng", and restored when those of the process are. In a loader's workers, a dataset draws
from copies that no checkpoint can have: those generators are named in `unsaved`.

Beside them, a save has notes of random numbers that the loop draws behind ck.step() (LateDraws).
"""

import logging
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from holdfast.torch.data.loaders import Loaders
from holdfast.torch.values import generators as random_generators
from holdfast.torch.values.dotted_names import join
from holdfast.torch.values.found_generators import Search, generators_of_program
from holdfast.torch.values.generators import is_generator

_log = logging.getLogger("holdfast")

_SMALL = 50  # so many objects are searched again at every save: that takes less than a millisecond
_IN_WORKERS = ("a loader's workers draw from copies of it, which cannot be saved: a resumed run draws "
               "other numbers; expected draws from the global generator of torch, NumPy or Python, "
               "which Holdfast's loaders seed for every batch, or num_workers=0")


class SavedGenerators:
    """All generators of one process that are saved by name."""

    def __init__(self, given: Mapping[str, Any], models: Iterable[tuple[str, Any]], data: Loaders,
                 objects: Mapping[str, Any]) -> None:
        """`objects` are saved by their own state_dict(). Those whose state has a generator are not searched."""
        self._given = dict(given)
        # These stay the same dicts, because others hold them.
        self.all = dict(given)
        self.found: dict[str, Any] = {}  # what nobody gave and is saved, by path
        self.unsaved: dict[str, str] = {}  # what cannot be saved, and why, by path
        self._models = list(models)
        self._data = data
        self._objects = dict(objects)
        self._left_out: list[Any] = []  # objects that save the generators that they hold
        self._of_others: list[Any] = []  # the same, foreign loaders, and the generators in all of them
        # Paths of generators in variables of the program, and what holds them there.
        self._of_program: tuple[list[str], list[Any]] = [], []
        self._looks = 0
        self._looked_at = 0  # how many objects the last thorough search has seen
        self._holders: list[Any] = []  # where generators were found
        self._warned: set[str] = set()
        # Restored states of generators in loaders that a trainer has yet to make.
        self.waiting: dict[str, Any] = {}
        self.late_draws = LateDraws(self.all, data)

    @property
    def dicts(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
        """All that are saved, those of them that nobody gave, and why others are not saved.

        They stay the same dicts.
        """
        return self.all, self.found, self.unsaved

    def look(self) -> None:
        """Searches again: thoroughly at first, and then where generators were found."""
        is_early = self._looks < 2
        if is_early:
            self._left_out = [part for one in self._objects.values() if saves_generators(one)
                              for part in _parts(one)]
        search = Search([*self._given.values(), *self._left_out])
        if is_early or self._looked_at <= _SMALL:
            found = dict(self._search(search))
            self._looked_at, self._holders = search.looked_at, search.holders
        else:
            found = search.find_again(self._holders, self.found)
        self._looks += 1
        self._add_those_of_program(found, is_early)
        self._take(found)
        self._note_workers()

    def warn(self) -> None:
        """Names, once, what cannot be saved."""
        for name, why in self.unsaved.items():
            if name not in self._warned:
                self._warned.add(name)
                _log.warning("generator %s: %s", name, why)

    def capture(self) -> dict[str, Any]:
        """What a checkpoint has of the generators."""
        now = random_generators.capture(self.all)
        return {"generators": now, "unsaved generators": dict(self.unsaved), "late draws": self.late_draws.saved(now)}

    def restore(self, saved: Mapping[str, Any]) -> list[str]:
        """Restores all generators. Returns why the run may differ in bits from now on."""
        self.look()
        states = dict(saved["extra"])
        if self._data.read_by_trainer is None:
            self.waiting = {name: states.pop(name) for name in list(states)
                            if name.startswith("data.") and name not in self.all}
        return random_generators.restore({**saved, "extra": states}, self.all)

    def restore_waiting(self, waiting: Mapping[str, Any]) -> list[str]:
        """Restores what waited for the loaders. Returns why the run may differ in bits."""
        self.look()
        random_generators.restore_extra(waiting, self.all)
        return [f"generator {name}: not in this process" for name in sorted(waiting.keys() - self.all)]

    def _search(self, search: Search) -> Iterator[tuple[str, Any]]:
        for key, model in self._models:
            yield from search.find(model, join("model", key)).items()
        for name, source in self._data.sources():
            if source.workers == 0:
                yield from search.find(source.dataset, f"{name}.dataset").items()
                yield from search.find(source.collate_fn, f"{name}.collate_fn").items()
            if source.sampler is not None:
                search.leave_out(source.replayed)
                yield from search.find(source.sampler, f"{name}.sampler").items()
        for name, one in self._objects.items():
            yield from search.find(one, name).items()

    def _add_those_of_program(self, found: dict[str, Any], is_early: bool) -> None:
        """Adds those of variables and of objects in them, unless they are saved elsewhere.

        A loader saves some, and so do given objects. What a trainer holds is found when it makes its loaders.
        """
        sources = [source for _, source in self._data.sources()]
        if is_early:  # what others save may be reached by another variable, too
            alone = Search()
            owners = [*self._left_out, *self._data.foreign]
            self._of_others = owners + [one for owner in owners for one in alone.find(owner, "").values()]
        saved = [*self._given.values(), *self._of_others, *found.values(),
                 *(one for source in sources for one in source.replayed)]
        known = {id(one) for one in saved}
        found |= {path: one for path, one in generators_of_program().items() if id(one) not in known}
        if self._data.read_by_trainer != []:
            return
        search = Search([*saved, *found.values(), *(part for source in sources if source.workers
                                                    for part in (source.dataset, source.collate_fn))])
        if is_early:
            others = search.find_in_program()
            self._of_program = list(others), search.holders
        else:
            names, holders = self._of_program
            others = search.find_again(holders, names)
        found |= {path: one for path, one in others.items() if path not in found}

    def _take(self, found: Mapping[str, Any]) -> None:
        """Keeps what can be saved."""
        for name, one in found.items():
            if self.found.get(name) is not one:
                try:
                    random_generators.capture_one(name, one)
                except Exception as error:  # a user's subclass may do anything
                    self.unsaved[name] = f"its state cannot be read ({error!r:.100})"
        good = {name: one for name, one in found.items() if name not in self.unsaved}
        for known, now in ((self.found, good), (self.all, {**self._given, **good})):
            known.clear()
            known.update(now)

    def _note_workers(self) -> None:
        """Names the generators that are drawn from in workers, or may be where that cannot be seen."""
        for name, source in self._data.sources():
            if source.workers == 0:
                continue
            if source.drawn_in_workers is not None:
                drawn = [f"{name}.{one}" for one in source.drawn_in_workers()]
            else:
                search = Search([*self._given.values(), *self._left_out])
                drawn = [*search.find(source.dataset, f"{name}.dataset"),
                         *search.find(source.collate_fn, f"{name}.collate_fn")]
            self.unsaved.update(dict.fromkeys(drawn, _IN_WORKERS))


def _parts(given: Any) -> list[Any]:
    """An object, and the objects in it if it is a list or a dict."""
    inside = list(given.values()) if type(given) is dict else given
    return [given, *inside] if type(inside) in (list, tuple) else [given]


def inexact_generators(own: Mapping[str, Any]) -> list[str]:
    """Sentences about generators that could not be saved in the checkpoint of a rank."""
    return [f"generator {name}: {why}" for name, why in own.get("unsaved generators", {}).items()]


_MOST_NOTES = 4  # different notes of late draws that are kept
_LINE = ("generators: random numbers are drawn behind ck.step() in steps that were saved, and a resumed run does "
         "not draw them; expected such draws, and validations, before ck.step(), or in torch.random.fork_rng()")

Moved = dict[str, int]  # as random_generators.distances() tells it


class LateDraws:
    """Random numbers that a loop draws behind ck.step(), which a training that is resumed does not draw.

    A validation draws when it makes the iterator of a DataLoader, for example. A save has the generators as
    they are at ck.step(), and a resumed loop begins at the top of the next step: numbers that were drawn in
    between are drawn again if they belong to the top of the loop, and else are missing. Nobody can tell the
    two apart while they are drawn. So after each save it is noted how far the generators have moved when the
    loop asks for its next batch, and later saves have these notes. When a resumed loop asks for its first
    batch, its own generators must have moved as far as in each of these notes; if not, the run may differ in
    bits.
    """

    def __init__(self, generators: Mapping[str, Any], data: Loaders) -> None:
        """`generators` are those beside the process's own, in a dict that may grow."""
        self._generators, self._data = generators, data
        self._notes: list[Moved] = []
        self._before: Any = None  # the generators at the newest save or resume; None behind the next request
        self._expected: Sequence[Moved] = ()  # notes of the checkpoint that was resumed
        self._inexact: list[str] = []  # gets a line if they are not met
        me = weakref.ref(self)  # a loader may live longer
        end = data.listen(lambda: (one := me()) and one._begin_pass(), lambda: (one := me()) and one._ask())
        weakref.finalize(self, end).atexit = False

    def saved(self, generators: Any) -> list[Moved]:
        """A save has these generators. Returns the notes that belong into it."""
        self._before, self._expected = generators, ()
        return list(self._notes)

    def resumed(self, generators: Any, notes: Sequence[Moved], inexact: list[str]) -> None:
        """The generators are restored, or will be when a pass begins. `inexact` gets a line if numbers are missing."""
        self._notes, self._before = list(notes), generators
        self._expected, self._inexact = notes, inexact

    def _begin_pass(self) -> None:
        """What was drawn behind an epoch is drawn again: a resumed loop begins in that epoch."""
        if not self._expected:
            self._before = None

    def _ask(self) -> None:
        if self._before is None or self._data.awaits_iterator:  # generators are not restored yet
            return
        moved = random_generators.distances(self._before, random_generators.capture(self._generators))
        expected, self._before, self._expected = self._expected, None, ()
        if not expected:
            self._notes = self._notes if moved in self._notes else [*self._notes[1 - _MOST_NOTES:], moved]
        elif expected.count(moved) < len(expected) and not any(line.startswith("generator") for line in self._inexact):
            self._inexact.append(_LINE)  # unless a generator could not be restored, which is told already
            _log.warning("resume: %s", _LINE)


_MOST_VALUES = 2000  # so many values are looked at, to find the state of a generator
_MOST_ITEMS = 64  # so many items of one container
_TORCH = frozenset({5056, 16})  # bytes of the state of a generator of a CPU, and of a GPU
_PYTHON = 625  # numbers in the state of Python's generator


def saves_generators(one: Any) -> bool:
    """True if what the object's state_dict() returns has a generator, or what looks like its state.

    Such an object may have a way of its own to set its generators, which must not be interfered with.
    """
    function = getattr(one, "state_dict", None)
    waiting = [function() if callable(function) else one]
    for seen, value in enumerate(waiting):  # it grows
        if seen > _MOST_VALUES:
            return False
        if _is_state(value):
            return True
        if isinstance(value, Mapping):
            waiting += islice(value.values(), _MOST_ITEMS)
        elif isinstance(value, list | tuple):
            waiting += islice(value, _MOST_ITEMS)
    return False


def _is_state(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dtype == torch.uint8 and value.dim() == 1 and value.numel() in _TORCH
    if isinstance(value, Mapping):
        return "bit_generator" in value
    return is_generator(value) or (isinstance(value, list | tuple) and len(value) == _PYTHON)
