"""Updates without a gate, of which the newest can be taken back (Recover(undo=True)), as SWIFT does.

For a comparison with the gate (gated_steps.py): the bits are not those of a run in which nobody died.

  1. A rank makes its update without a word to the others (open_gate.py). It keeps the gradients that the update
     uses until the next one, and what the run began with.
  2. After a death, survivors tell which update they have made, and of which they have a record of the lost
     rank. All go on after the newest update that nobody lacks (holdfast/launch/decisions.py).
  3. A survivor that has made one more takes it back (undone_updates.py). What else the run has changed is put
     back as for a run that is made again.
  4. Not all bits have come back. So all ranks take parameters and slots from the first rank that has taken an
     update back: else replicas would differ.
  5. That survivor then makes the run again, before its loop goes on. What its loop has changed meanwhile is put
     back as it was, and the step that it has called done is saved by no rank.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch

from holdfast import _native
from holdfast.torch.recover.open_gate import OpenGate
from holdfast.torch.recover.peers import PATIENCE, tell
from holdfast.torch.recover.records import Records
from holdfast.torch.recover.repeated_calls import RepeatedCalls
from holdfast.torch.recover.step_start import StepStart
from holdfast.torch.recover.undone_updates import KeptUpdate, why_not
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values import generators as random_generators

_OPTIONS = "~options"  # no object has this key


def check_undoable(optimizers: Collection[Any], scalers: Collection[Any]) -> None:
    """ValueError if updates of these optimizers cannot be taken back."""
    for one in optimizers:
        if why := why_not(one):
            raise ValueError(f"undo=True: {why}")
        if scalers and any(group.get("fused") for group in one.param_groups):
            raise ValueError(f"undo=True: a fused {type(one).__name__} with a GradScaler divides gradients "
                             "itself, so that they cannot be kept; expected fused=False")


def check_replicas(boxes: Collection[Collection[bytes]]) -> None:
    """ValueError unless all ranks have the same parameters; `boxes` has those of each rank."""
    if len({frozenset(one) for one in boxes}) > 1:
        raise ValueError("undo=True: ranks have different parameters; expected replicas on all ranks (DDP)")


class _Run:
    """A run of ck.run(), with what its beginning was."""

    def __init__(self, call: tuple[Any, ...], start: StepStart, repeated: RepeatedCalls, records: Records,
                 handed_out: int) -> None:
        self.call, self.start, self.handed_out = call, start, handed_out
        self.position = records.loader_state()
        self.marks = repeated.mark(), records.mark()
        self.ended: dict[str, Any] = {}  # options and objects at its end
        self.steps: list[int] = []  # that ck.step() was told since then
        self.reads = False  # it has read batches itself


class Undo:
    """The part of one rank."""

    def __init__(self, state: TrainingState, make_start: Callable[[], StepStart], repeated: RepeatedCalls,
                 records: Records) -> None:
        self._state, self._repeated, self._records = state, repeated, records
        self._starts = [make_start(), make_start()]
        self._run: _Run | None = None  # that is being made
        self._made: _Run | None = None  # whose update is the newest
        self._undone: tuple[_Run, _Between] | None = None  # was taken back, and is to be made again
        self._updates: list[KeptUpdate] = []
        self._many = 0  # updates of optimizers in the newest run
        self._taken_back = 0  # updates of optimizers, since the newest run
        self._line = ""  # what was taken back, on all ranks
        self.on_step_again: Callable[[int], None] = _nothing
        self.skipped: set[int] = set()  # what ranks that have taken an update back had told ck.step() already

    # In each run

    def begin(self, *call: Any) -> StepStart:
        """A run begins: the call of GatedSteps that makes it. Returns what keeps its beginning."""
        start = next(one for one in self._starts if self._made is None or one is not self._made.start)
        self._run = _Run(call, start, self._repeated, self._records, self._handed_out())
        return start

    def commit(self) -> None:
        """This rank makes the update of the run. The one before cannot be taken back any more."""
        self._made, self._run = self._run, None
        self._many = self._taken_back = 0
        self._line = ""

    def keep(self, optimizer: Any, *, has_closure: bool) -> None:
        """An optimizer is about to make its update."""
        if has_closure:
            raise ValueError("undo=True: step(closure) makes gradients in the update; expected step()")
        if self._many == len(self._updates):
            self._updates.append(KeptUpdate())
        self._updates[self._many].keep(optimizer)
        self._many += 1

    def end(self) -> None:
        """The run is done."""
        if self._made is not None:
            self._made.ended = self._values()
            self._made.reads = self._handed_out() != self._made.handed_out

    def stepped(self, step: int) -> None:
        """ck.step() was called."""
        if self._made is not None:
            self._made.steps.append(step)

    # After a death

    def take_back(self, gate: OpenGate, target: int) -> None:
        """Goes back to the state after that update. ValueError if that is not possible."""
        if gate.committed == target:
            return
        run = self._made
        if run is None or run.reads:
            raise ValueError("an update cannot be taken back: " + ("its step reads batches itself" if run else
                             "it is the first of this process"))
        between = _Between(self._state, self._repeated.function, run.ended, self._values())
        for kept in reversed(self._updates[:self._many]):
            kept.take_back()
        optimized = {id(one) for optimizer in self._state.optimizers for group in optimizer.param_groups
                     for one in group["params"]}
        names = [name for name, one in self._state.parameters().items() if id(one) in optimized]
        if why := run.start.restore(names):
            raise ValueError(f"an update cannot be taken back: {why}")
        self._repeated.go_back(run.marks[0])
        self._records.go_back(run.marks[1])
        self._records.position = run.position
        gate.go_back(target)
        self._taken_back, self._made, self._undone = max(1, self._many), None, (run, between)

    def share(self, transport: _native.TcpTransport, *, is_new: bool = False) -> None:
        """All ranks take what one of them has, if one has taken an update back. `is_new` in a replacement."""
        steps = self._undone[0].steps if self._undone is not None else []
        told = tell(transport, {"undone": self._taken_back, "line": self._line, "steps": steps})
        self.skipped = {step for one in told for step in one["steps"]}
        undone = [rank for rank, one in enumerate(told) if one["undone"]]
        touched = undone or [rank for rank, one in enumerate(told) if one["line"]]
        if not touched:
            return
        most = max(one["undone"] for one in told)
        self._line = f"undo: rank {', '.join(map(str, undone))} took {most} update{'s' if most > 1 else ''} back, " \
                     "and not all bits come back" if undone else told[touched[0]]["line"]
        pieces = self._state.describe(self._state.peers.shared_pieces()) if not is_new else []
        if any(one.is_cuda for one in self._state.model_tensors().values()):
            torch.cuda.synchronize()
        is_source = transport.rank == touched[0]
        _native.change_layout(transport, pieces if is_source else _native.Pieces([]),
                              _native.Pieces([]) if is_source or is_new else pieces, PATIENCE)

    def told(self) -> dict[str, Any]:
        """What the launcher is told of it."""
        return {"reason": self._line, "inexact": [self._line]} if self._line else {}

    def make_again(self, make: Callable[..., Any], note_step: Callable[[int], None],
                   reach_top: Callable[[], None]) -> None:
        """Makes the run again whose update was taken back, if there is one."""
        while self._undone is not None:
            (run, between), self._undone = self._undone, None
            make(*run.call)
            for step in run.steps:
                note_step(step)
                self.on_step_again(step)
            between.put_back()
            self._records.position, self._repeated.function = None, between.function
            reach_top()

    def _values(self) -> dict[str, Any]:
        """The options, and the plain values of all objects but the loader."""
        return {_OPTIONS: self._state.peers.options(),
                **{one.key: one.capture()[0] for one in self._state.peers.but_loader()}}

    def _handed_out(self) -> int:
        return 0 if self._state.loader is None else self._state.loader.handed_out


class _Between:
    """What a loop has changed since the end of a run that is taken back."""

    def __init__(self, state: TrainingState, function: str, ended: dict[str, Any], now: dict[str, Any]) -> None:
        """`function` is the run that the loop has begun now; the values are those of Undo._values()."""
        self._state, self.function, self._generators = state, function, state.peers.generators()
        changed = [key for key in now if repr(now[key]) != repr(ended.get(key))]
        self._options = now[_OPTIONS] if _OPTIONS in changed else None
        self._objects = [(one, now[one.key], {piece.name: piece.tensor.clone() for piece in one.capture()[1]})
                         for one in state.peers.but_loader() if one.key in changed]

    def put_back(self) -> None:
        """Makes it as it was."""
        random_generators.restore(self._generators, self._state.generators)
        if self._options is not None:
            self._state.peers.load_options(self._options)
        for one, tree, tensors in self._objects:
            one.give(tree, tensors)


def _nothing(_: int) -> None: ...
