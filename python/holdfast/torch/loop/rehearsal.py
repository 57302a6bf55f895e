"""The side of a training process in `holdfast rehearse`: it records every step, and waits to be killed.

A record of a step has what a save would hold (the seals of its tensors, its plain values), the loss,
and what entered the forward pass of the model. A life is killed by the process that started it
(holdfast/rehearse): here a process only waits, once the step before is durable, and says so.
"""

import contextlib
import functools
import json
import logging
import operator
import os
import signal
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from holdfast.rehearse.plan import (
    AFTER_SAVE,
    AFTER_UPDATE,
    BEFORE_UPDATE,
    VARIABLE,
    Kill,
    Plan,
    place_to_read,
    records_folder,
)
from holdfast.torch.loop.plain_parts import NoRehearsal
from holdfast.torch.loop.step_record import (
    digest_inputs,
    digest_text,
    digest_values,
    seals_by_name,
)
from holdfast.torch.values import generators
from holdfast.torch.values.boxes import local_of
from holdfast.torch.values.found_generators import Search, generators_of_program

_DURABLE = 120.0  # seconds for the save before a kill to become durable
_LOOK = 0.05  # seconds between two looks whether the supervisor is still there


class Rehearsal:
    """One process of a rehearsed training. It serves all Checkpointers of the process."""

    is_on = True

    def __init__(self, folder: Path) -> None:
        self._plan = Plan.read(folder)
        self._rank = int(os.environ.get("RANK", "0"))
        self._path = records_folder(folder, self._plan.life) / f"rank-{self._rank}.jsonl"
        self._seen = _Seen()
        self._parts: list[str] = []  # the runs of this process, in the order of their opening
        self._calls: list[tuple[int, int]] = []  # the steps that were recorded: part and number
        self._hooks: dict[int, list[Any]] = {}  # by Checkpointer
        self._watched: weakref.WeakSet[Any] = weakref.WeakSet()
        self._call_step: set[int] = set()  # the parts of which step() was called
        logging.getLogger("holdfast").addHandler(_Warnings(self._write))

    # What a Checkpointer calls

    def attach(self, checkpointer: Any) -> None:
        """Watches the model of a Checkpointer that was made."""
        if not self._calls and dist.is_available() and dist.is_initialized():
            self._rank = dist.get_rank()
            self._path = self._path.with_name(f"rank-{self._rank}.jsonl")
        state = checkpointer._state
        if checkpointer._run not in self._parts:
            self._parts.append(checkpointer._run)
        self._write("open", part=self._part(checkpointer), rank=self._rank, world=state.world,
                    pid=os.getpid(),
                    launched="HOLDFAST_LAUNCH_ID" in os.environ, **_loader_facts(state))
        self._watched.add(checkpointer)
        self._hooks[id(checkpointer)] = [
            *(hook for model in state.models for hook in self._seen.watch(state, model)),
            register_optimizer_step_pre_hook(_weak_hook(self, checkpointer))]

    def detach(self, checkpointer: Any) -> None:
        """Ends that, when the Checkpointer is closed."""
        self._watched.discard(checkpointer)
        for hook in self._hooks.pop(id(checkpointer), ()):
            hook.remove()

    def due(self, step: int) -> tuple[str, str] | None:
        """Asks for the save before a kill, as the schedule asks for others."""
        kill = self._plan.kill
        wanted = kill is not None and self._plan.alone is None and kill.where != AFTER_SAVE
        return ("save", "holdfast rehearse") if wanted and step == kill.after else None

    def to_resume(self, step: int | None, initial: Any) -> tuple[int | None, Any]:
        """The newest step, as the run of a rehearsal does not have the one that was asked for.

        Another run that the same script has made lies in the folder of the rehearsal, too.
        """
        return None, initial and place_to_read(initial)

    def resumed(self, checkpointer: Any, start: int) -> None:
        """Records what resume() has brought back."""
        self._write("resumed", part=self._part(checkpointer), start=start,
                    **(self._state_of(checkpointer) if start > 0 else {}))

    def made(self, checkpointer: Any, step: int, loss: Any) -> None:
        """Records a step, at the beginning of step(); waits there if the life ends in this step."""
        self._call_step.add(self._part(checkpointer))
        self._record(checkpointer, step, loss, by="step")
        if self._plan.alone is not None and self._kill_of(checkpointer) is not None:
            self._die_alone(step - 1)  # unless it has died already, in front of an update that is seen
        if self._is_time(checkpointer, step):
            self._wait_to_be_killed(checkpointer, step, AFTER_UPDATE)
        if self._is_last(checkpointer, step):
            self._wait(checkpointer, "end", step)

    def saved(self, checkpointer: Any, step: int, loss: Any) -> None:
        """Records a step that is saved by save(), in a script that does not call step()."""
        if self._part(checkpointer) in self._call_step:
            return
        step = operator.index(step)
        self._record(checkpointer, step, loss, by="save")
        kill = self._kill_of(checkpointer)
        if kill is not None and kill.where == AFTER_SAVE and step >= kill.after:
            self._wait_to_be_killed(checkpointer, step, AFTER_SAVE)
        if self._is_last(checkpointer, step):
            self._wait(checkpointer, "end", step)

    # The parts

    def before_update(self, checkpointer: Any) -> None:
        """Called before every update of an optimizer."""
        kill = self._kill_of(checkpointer)
        if kill is None or kill.where != BEFORE_UPDATE or checkpointer not in self._watched:
            return
        step = max(self._steps_of(self._part(checkpointer)), default=-1)
        if self._plan.alone is not None:
            self._die_alone(step)
        elif self._all_saved(checkpointer, kill):
            self._wait_to_be_killed(checkpointer, step + 1, BEFORE_UPDATE)

    def _part(self, checkpointer: Any) -> int:
        """Which Checkpointer of the script it is: those of one run count as one."""
        return self._parts.index(checkpointer._run)

    def _steps_of(self, part: int) -> list[int]:
        return [step for one, step in self._calls if one == part]

    def _kill_of(self, checkpointer: Any) -> Kill | None:
        """The kill, if it comes in a step of this Checkpointer."""
        return self._plan.kill if self._part(checkpointer) == self._plan.part else None

    def _is_time(self, checkpointer: Any, step: int) -> bool:
        """True if the life ends here: a save was made before, and this step comes after it."""
        kill = self._kill_of(checkpointer)
        return (kill is not None and kill.where != AFTER_SAVE and self._plan.alone is None
                and step > _saved_last(checkpointer) and self._all_saved(checkpointer, kill))

    def _all_saved(self, checkpointer: Any, kill: Kill) -> bool:
        """True if it has saved the step before the kill, and so have those that make steps beside it."""
        part, calls = self._part(checkpointer), self._calls
        own = [place for place, (one, _) in enumerate(calls) if one == part]
        beside = {one for one, _ in calls[own[-2] if len(own) > 1 else 0:]} | {part}
        return all(_saved_last(one) >= kill.after for one in self._watched
                   if self._part(one) in beside)

    def _is_last(self, checkpointer: Any, step: int) -> bool:
        part, plan = self._part(checkpointer), self._plan
        numbers = self._steps_of(part)
        if plan.end is None:
            return len(set(numbers)) >= plan.steps
        is_end = step > plan.end or (step == plan.end and numbers.count(step) >= plan.calls)
        return part == plan.part and is_end

    def _record(self, checkpointer: Any, step: int, loss: Any, by: str) -> None:
        part = self._part(checkpointer)
        self._calls.append((part, step))
        self._end_without_supervisor()
        self._write("step", part=part, call=len(self._calls), by=by, step=step,
                    loss=_text_of(loss), **self._seen.take(), **self._state_of(checkpointer),
                    **_epoch_of(checkpointer))

    def _state_of(self, checkpointer: Any) -> dict[str, Any]:
        captured = checkpointer._saves.look()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        values = {**captured.objects, **{f"rank.{key}": one
                                         for key, one in captured.rank_objects.items()}}
        return {"tensors": seals_by_name(captured.pieces), "values": digest_values(values),
                "found": {**_unsaved_generators(checkpointer._state),
                          **checkpointer._changes.digest_unsaved_tensors()}}

    def _die_alone(self, step: int) -> None:
        """Kills this rank and no other, once."""
        kill, mark = self._plan.kill, self._path.with_suffix(".killed")
        if self._plan.alone == self._rank and step == kill.after and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def _wait_to_be_killed(self, checkpointer: Any, step: int, where: str) -> None:
        """Waits until all saves are durable, and then for the end."""
        for one in list(self._watched):
            one._saves.settle()
            if one._saves.handle is not None:
                with contextlib.suppress(Exception):  # then a resume shows what is missing
                    one._saves.handle.durable(_DURABLE)
        self._wait(checkpointer, "kill", step, where)

    def _wait(self, checkpointer: Any, why: str, step: int, where: str = "") -> None:
        """Waits for the supervisor to end this process."""
        self._write("waits", part=self._part(checkpointer), why=why, step=step, where=where,
                    unsaved=[line for one in list(self._watched) for line in _unsaved_by(one)],
                    **self._seen.take())
        while True:
            self._end_without_supervisor()
            time.sleep(_LOOK)

    def _end_without_supervisor(self) -> None:
        """Ends this process if the one that watches it was killed."""
        try:
            os.kill(self._plan.supervisor, 0)
        except ProcessLookupError:
            os._exit(1)
        except PermissionError:  # it is there, and belongs to another user
            pass

    def _write(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, **fields})
        with open(self._path, "a") as file:
            file.write(line + "\n")


class _Seen:
    """What entered the model since the last step, and the generators at the first of these calls."""

    def __init__(self) -> None:
        self._inputs: list[str] = []
        self._generators: dict[str, str] = {}
        self._validated = False
        self._is_inside = False  # the forward pass of a whole model

    def watch(self, state: Any, model: Any) -> list[Any]:
        """Hooks on the forward pass of a model, and of its parts where it is not called as a whole.

        Lightning's modules and others have a training_step() that calls their parts.
        """
        enter = functools.partial(self.note_forward, state)
        part = functools.partial(self._note_part, state)
        return [model.register_forward_pre_hook(enter, with_kwargs=True),
                model.register_forward_hook(self._leave, always_call=True),
                *(child.register_forward_pre_hook(part, with_kwargs=True)
                  for child in model.children())]

    def _leave(self, *_: Any) -> None:
        self._is_inside = False

    def _note_part(self, state: Any, module: Any, args: Any, kwargs: Any) -> None:
        if not self._is_inside:
            self._note(state, module, args, kwargs)

    def note_forward(self, state: Any, module: Any, args: Any, kwargs: Any) -> None:
        """A hook before the forward pass of a model."""
        self._is_inside = True
        self._note(state, module, args, kwargs)

    def _note(self, state: Any, module: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():  # what is compiled can be no record; the state shows enough
            return
        if not (module.training and torch.is_grad_enabled()):
            self._validated = True
            return
        if not self._inputs:
            self._generators = digest_values(generators.capture(state.generators))
        tensors = [local_of(leaf).detach() if isinstance(leaf, torch.Tensor) else leaf
                   for leaf in tree_leaves((args, kwargs))]
        self._inputs.append(digest_inputs(state, tensors))

    def take(self) -> dict[str, Any]:
        """What was seen; from now on, only what comes later."""
        found = {"inputs": self._inputs, "generators": self._generators,
                 "validated": self._validated}
        self._inputs, self._generators, self._validated = [], {}, False
        return found


class _Warnings(logging.Handler):
    """Records the warnings of Holdfast, and prints them as before."""

    def __init__(self, write: Any) -> None:
        super().__init__(logging.WARNING)
        self._record = write

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._record("warning", text=text)
        print(text, file=sys.stderr, flush=True)


@functools.cache
def current() -> Rehearsal | NoRehearsal:
    """The rehearsal of this process."""
    folder = os.environ.get(VARIABLE)
    return Rehearsal(Path(folder)) if folder else NoRehearsal()


def _weak_hook(rehearsal: Rehearsal, checkpointer: Any) -> Any:
    ref = weakref.ref(checkpointer)

    def before(*_: Any) -> None:
        if (live := ref()) is not None:
            rehearsal.before_update(live)

    return before


def _unsaved_generators(state: Any) -> dict[str, str]:
    """Generators that are found and that no save holds, by path, with digests of their states."""
    sources = state.data.sources()
    search = Search([*state.generators.values(),
                     *(one for _, source in sources for one in source.replayed)])
    found: dict[str, Any] = {}
    for number, model in enumerate(state.models):
        found |= search.find(model, f"model.{number}" if number else "model")
    for name, source in sources:
        for part in ("dataset", "collate_fn", "sampler"):
            found |= search.find(getattr(source, part), f"{name}.{part}")
    for path, one in generators_of_program().items():
        found |= search.find(one, path)
    return {path: f"{_kind_of(one)} {digest_text(repr(generators.capture_one(path, one)))}"
            for path, one in found.items()}


def _kind_of(generator: Any) -> str:
    """The class of a generator, with the library that it is of: both NumPy and torch have a Generator."""
    return f"{type(generator).__module__.partition('.')[0]} {type(generator).__name__}".removeprefix("random ")


def _unsaved_by(checkpointer: Any) -> list[str]:
    """Sentences about what takes part in the training, and is not in the saves as it should be."""
    return [*checkpointer._changes.find_unsaved().values(), *map(str, checkpointer.report.inexact)]


def _text_of(loss: Any) -> str | None:
    """All bits of a loss; None if it is not one number."""
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        return None if loss is None else float(loss).hex()
    return None


def _saved_last(checkpointer: Any) -> int:
    saved = checkpointer._steps.saved_last
    return -1 if saved is None else saved


def _loader_facts(state: Any) -> dict[str, Any]:
    """What is known of the loader: its workers, and the batches of an epoch."""
    loader = state.data.first
    workers = getattr(getattr(loader, "_inner", None), "num_workers", 0)
    sequence = getattr(getattr(loader, "sampler", None), "sequence", None)
    length = getattr(sequence, "batches_per_epoch", None)
    if loader is not None and length is None:
        with contextlib.suppress(TypeError):
            length = len(loader)
    return {"workers": workers, "epoch_length": length, "has_loader": loader is not None}


def _epoch_of(checkpointer: Any) -> dict[str, Any]:
    """The number of the epoch, and whether it still is that of a `for` that has read its last batch."""
    loader = checkpointer._state.data.first
    epoch = getattr(loader, "epoch", None)
    if loader is None and (ask := checkpointer.epoch_of) is not None:
        return {"epoch": ask(), "ends_with_for": True}
    spans = getattr(loader, "_epochs", getattr(getattr(loader, "sampler", None), "epochs", None))
    return {"epoch": epoch if isinstance(epoch, int) else None, "ends_with_for": spans == "each"}
