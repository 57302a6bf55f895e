"""One process of an elastic job: its groups, its model, and its part in changes of the configuration."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from holdfast import _native
from holdfast.resize.control import Control
from holdfast.resize.parallel import Parallel
from holdfast.torch.elastic import building, known_shapes
from holdfast.torch.elastic.carried_state import CarriedState
from holdfast.torch.elastic.change import Change
from holdfast.torch.elastic.held_signals import HeldSignals
from holdfast.torch.elastic.kept_groups import KeptGroups, forget_groups
from holdfast.torch.elastic.late_memory import LateMemory
from holdfast.torch.elastic.new_parameters import KeptParameters, give_parameters
from holdfast.torch.elastic.requests import Requests, event_of, figures_of
from holdfast.torch.elastic.step_arguments import StepArguments
from holdfast.torch.loop.plain_parts import NotElastic
from holdfast.torch.loop.resume import Resume
from holdfast.torch.recover import worker_side
from holdfast.torch.recover.crash_points import reach
from holdfast.torch.recover.inner_group import connect_to_store


class OldConfiguration:
    """What the job goes back to if a change fails."""

    def __init__(self, parallel: Parallel, mesh: Any, parts: dict[str, Any], optimizers: Any) -> None:
        self.parallel, self.mesh, self.parts = parallel, mesh, parts
        self.optimizers = KeptParameters(optimizers)
        self.groups: KeptGroups | None = None  # once they are set aside


class Member:
    """What is behind holdfast.Elastic. Only the thread that trains uses it."""

    is_member = True

    def __init__(self, build: building.Build, parallel: Parallel, sizes: dict[int, Parallel],
                 device: torch.device | str | None, backend: str | None, timeout: timedelta,
                 in_parts: bool | None) -> None:
        self._in_parts = in_parts
        self._build, self._backend, self._timeout = build, backend, timeout
        self.device = _device(device)
        self._side = worker_side.current()
        link = None if self._side is None else self._side.link
        # A process without a place in the job makes a model that only shows its parameters.
        self.waits = link is not None and link.is_joiner
        sizes = {parallel.workers: parallel, **sizes}  # what the program begins with is one of them
        self.parallel = Parallel.parse(link.configuration) if link and link.configuration else parallel
        self.parts: dict[str, Any] = {}
        self.mesh: Any = None
        self._loaders: list[Any] = []
        self._checkpointer: Any = None
        self._named: dict[str, str] = {}  # objects of the Checkpointer that build() has made
        self._requests: Requests | None = None
        self._old: OldConfiguration | None = None  # until a change is made
        self._resume: Resume | None = None  # what has filled the parts; None if they are those of before
        self._is_noted = False  # the run says which configuration the job has
        self._signals = HeldSignals(self._has_listening_job, is_active=link is not None)
        self._due = False  # a change is due behind the step that is being made
        ranks = int(os.environ.get("WORLD_SIZE", "1")) if link is None else link.world
        if self.parallel.workers != ranks and not self.waits:
            raise ValueError(f"configuration {self.parallel}: has {self.parallel.workers} ranks; expected "
                             f"{ranks}, the number of this job")
        if link is not None:
            known_shapes.install()
        self._make_groups()
        self._make_parts(self.waits or (link is not None and link.is_replacement and link.is_rebuilt))
        if link is not None and not self.waits and dist.get_rank() == 0:
            link.say("change", what="configured", text=str(self.parallel),
                     sizes={str(number): str(one) for number, one in sizes.items()})

    @property
    def configuration(self) -> str:
        """What checkpoints say of how the job is split."""
        return str(self.parallel)

    @property
    def coordinates(self) -> tuple[int, int, int]:
        """The place of this rank in the mesh: its stage, its replica, its part of tensors."""
        return self.parallel.coordinates(dist.get_rank())

    def follow(self, loader: Any) -> tuple[int, int]:
        """Has the loader read the share of this replica, whatever the configuration is.

        Returns the number of the replica, and how many there are.
        """
        self._loaders.append(loader)
        return self.coordinates[1], self.parallel.dp

    def ask_for(self, to: Parallel) -> None:
        """The program asks for another configuration."""
        if self._side is None or self._checkpointer is None:
            raise ValueError("resize: this process has no Checkpointer, or was not started by holdfast "
                             "launch; expected both")
        if self._requests is not None:
            self._requests.ask(str(to))

    # Building

    def _make_groups(self) -> None:
        if self._side is None:
            if dist.is_initialized():
                return
            if "RANK" in os.environ:
                return dist.init_process_group(self._backend, timeout=self._timeout)
            return dist.init_process_group(self._backend, store=dist.HashStore(), rank=0, world_size=1)
        link, groups = self._side.link, self._side.groups
        store = dist.PrefixStore(f"holdfast/{groups.prefix}/torch", connect_to_store(self._timeout))
        dist.init_process_group(self._backend, store=store, rank=max(0, link.rank),
                                world_size=self.parallel.workers, timeout=self._timeout)

    def _make_parts(self, is_empty: bool, late: LateMemory | None = None) -> None:
        self.mesh = building.make_mesh(self.device, self.parallel)
        if is_empty:
            late = LateMemory() if late is None else late
            self.parts = building.build_empty(self._build, self.mesh, self.device, late)
        else:
            self.parts = building.build(self._build, self.mesh)

    # What a change calls, in this order (change.py)

    def set_aside(self) -> None:
        """Has no process groups any more. Those that hold the state are kept; others are destroyed."""
        assert self._side is not None
        self._side.groups.forget_failure()
        if self._old is None or self._old.groups is not None:
            forget_groups()
        else:
            self._old.groups = KeptGroups(self._side.groups)

    def go_back(self, prefix: str, is_stale: Callable[[], bool]) -> None:
        """Goes on with the old groups, the old model and its optimizer states."""
        old = self._old
        assert old is not None and self._side is not None
        if old.groups is None:  # no attempt has come so far
            old.groups = KeptGroups(self._side.groups)
        old.groups.put_back(prefix, is_stale)
        old.groups = None
        old.optimizers.put_back()
        self.parallel, self.mesh, self.parts = old.parallel, old.mesh, old.parts
        self._follow()
        self._open_parts()
        self._resume = None

    def rebuild(self, parallel: Parallel, late: LateMemory) -> None:
        """Makes groups, mesh and model for a configuration; its tensors get their memory later."""
        self.parallel, hook = parallel, sys.excepthook
        self._make_groups()
        sys.excepthook = hook  # torch has put one more around it
        self._make_parts(True, late)
        self._follow()

    def _follow(self) -> None:
        for loader in self._loaders:
            loader.follow_ranks(self.coordinates[1], self.parallel.dp)

    def open(self, optimizer_groups: list[dict[str, int]], held: Collection[str]) -> Resume:
        """Opens the job of the Checkpointer for the new model; workers hold the tensors of these names."""
        given = self._checkpointer._given
        give_parameters(given.optimizer, self.parts["model"], given.layout.names, optimizer_groups, held)
        self._resume = self._open_parts()
        return self._resume

    def _open_parts(self) -> Resume:
        assert self._side is not None
        self._side.has_checkpointer = False
        given = self._checkpointer._given
        given.model = self.parts["model"]
        given.named = {key: self.parts[self._named[key]] if key in self._named else one
                       for key, one in given.named.items()}
        return self._checkpointer._enter_configuration()

    def undo(self, *, together: bool = False) -> None:
        """Takes back what open() has done, with all who have done it, or alone: others may have failed."""
        with contextlib.suppress(Exception):
            self._checkpointer._leave_configuration(alone=not together)

    # What the Checkpointer calls

    def attach(self, checkpointer: Any) -> bool:
        """Gives the Checkpointer the model. True if this process has no place in the job yet."""
        self._checkpointer = checkpointer
        given = checkpointer._given
        if getattr(given.recover, "undo", False):
            raise ValueError("undo=True: ranks that are one update apart cannot change their configuration; expected "
                             "a model without holdfast.Elastic")
        given.model = self.parts["model"]
        for name, part in self.parts.items():
            if part is not None:
                self._named |= {key: name for key, one in given.named.items() if one is part}
        if self._side is not None and not self.waits and dist.get_rank() == 0:
            Control(given.run).refuse_waiting("ranks were lost, so that rank 0 has started again")
        self._watch_requests()
        return self.waits

    def release(self) -> None:
        """The Checkpointer is closed."""
        if self._requests is not None:
            self._requests.close()
        self._checkpointer = self._requests = None

    def ask(self, job: _native.Job) -> None:
        """In each step: has all ranks stop for a request whose workers are there."""
        if self._requests is None:
            return
        if not self._is_noted and self._side is not None:
            self._is_noted = True
            self._requests.note(self._side.link.members, None if self._side.link.is_replacement else 0)
        if ready := self._requests.take_ready():
            job.change(ready)

    def appoint(self, due: tuple[str, str] | None) -> None:
        """Takes what is due after a step."""
        self._due = self._due or (due is not None and due[0] == "change")

    def after_step(self, step: int) -> None:
        """At the end of a step: makes the change that is due, but not in the middle of an update."""
        if self._due and not self._checkpointer._is_mid_update():
            self._due = False
            with self._signals.held():
                self._change(step)

    def join(self) -> int:
        """In a process without a place in the job: waits for one. Returns the next step."""
        assert self._side is not None
        link = self._side.link
        after = link.announced
        while True:
            link.say("change", what="waits")
            decided = link.await_change(after)
            assert decided is not None
            change = Change(self._side, self, CarriedState(), in_parts=self._in_parts)
            with self._signals.held():
                if (made := change.make(decided)) is not None:
                    self.waits = link.is_joiner = False
                    self._go_on(change, made, None, 0.0)
                    return change.step + 1
            after = link.announced

    def _change(self, step: int) -> None:
        assert self._side is not None
        link, began = self._side.link, time.perf_counter()
        link.say("change", what="appointed", generation=link.generation)
        decided = link.await_change(link.generation)
        if decided is not None and not decided["after_loss"]:
            self._carry_out(step, decided, began)
        # Without an answer, a rank was lost. The launcher tells that to whoever asked for the change.

    def go_on_with_fewer(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Ranks are lost for good: goes on as the launcher has decided, from the step that is done.

        Returns the arguments of the step that is to be made again, with this rank's share of its batch.
        """
        assert self._side is not None
        link, began = self._side.link, time.perf_counter()
        decided, held = link.fewer, self._checkpointer
        assert decided is not None
        try:
            if why := self._why_not(Parallel.parse(decided["to"])):
                raise ValueError(why)
            step = held._recovery.step_in_memory()
            taken = [loader.take_back() for loader in self._loaders]
            given = StepArguments(args, kwargs, [one for batches in taken for one in batches])
            held._saves.drop()
        except Exception as error:
            link.say("change", what="unchanged", generation=link.announced, why=str(error))
            worker_side.wait_for_end()
        with self._signals.held():
            self._carry_out(step, decided, began, alone=True)
        return given.cut_from([loader.read_again() for loader, batches in zip(self._loaders, taken, strict=True)
                               if batches])

    def _carry_out(self, step: int, decided: dict[str, Any], began: float, *, alone: bool = False) -> None:
        """Makes a change behind that step; `alone` if not all ranks of before are there."""
        assert self._side is not None
        link, old = self._side.link, self.parallel
        self._old = OldConfiguration(old, self.mesh, self.parts, self._checkpointer._given.optimizer)
        carried = CarriedState.of(self._checkpointer, step, old, link.members)
        reach("change described")
        self._checkpointer._leave_configuration(alone=alone)
        change = Change(self._side, self, carried, in_parts=self._in_parts)
        made = change.make(decided)
        assert made is not None  # a rank that holds a part of the state takes part in every attempt
        self._let_go_of_old(link.slot in made["members"])
        self._go_on(change, made, old, time.perf_counter() - began)

    def _let_go_of_old(self, is_member: bool) -> None:
        """The change is made. Ends this process if it has no part in the job any more."""
        old, self._old = self._old, None
        assert old is not None
        if not is_member:
            raise SystemExit(0)
        if old.groups is not None:  # it has not gone back
            building.refuse_calls(old.parts["model"])
            old.groups.let_go()

    def _go_on(self, change: Change, made: dict[str, Any], old: Parallel | None, took: float) -> None:
        """Goes on as a rank of the new configuration."""
        self._checkpointer._go_on_after(change.step, f"the configuration is {self.parallel} now",
                                         self._resume)
        self._resume = None
        self._watch_requests()
        self._is_noted = True
        assert self._side is not None
        slot, members = self._side.link.slot, made["members"]
        if self._requests is not None:
            self._requests.note(members, change.step)
        # The first who has seen it all: rank 0 may have joined.
        if slot == next((one for one in members if one in made["holders"]), members[0]):
            told = figures_of(change, made, old, took)
            if made["request"]:
                Control(self._checkpointer._given.run).answer(made["request"], **told)
            if change.moved is not None and not change.has_gone_back:
                self._side.link.events.put("resized", event_of(told))

    def _has_listening_job(self) -> bool:
        saves = None if self._checkpointer is None else vars(self._checkpointer).get("_saves")
        return saves is not None and saves.job is not None and self._checkpointer._given.failures.signals

    def _watch_requests(self) -> None:
        if self._requests is not None:
            self._requests.close()
        self._requests = None
        if self._side is not None and not self.waits and dist.get_rank() == 0:
            link = self._side.link
            self._requests = Requests(Control(self._checkpointer._given.run), link, self.parallel,
                                      self._why_not)

    def _why_not(self, to: Parallel) -> str:
        """Why the job cannot have that configuration; "" if nothing is known against it."""
        if why := next(filter(None, (loader.why_not(to.dp) for loader in self._loaders)), ""):
            return why
        if to == self.parallel or self._checkpointer is None:
            return ""
        followed = {id(one) for one in self._loaders}
        if any(id(one) not in followed for one in self._checkpointer._state.data.each):
            return "data: a loader that does not follow the job; expected holdfast.data.loader(..., elastic=job)"
        return ""


def member_of(model: Any) -> Member | NotElastic:
    """What changes the configuration of a Checkpointer with that model."""
    found = vars(model).get("_member") if hasattr(model, "__dict__") else None
    return found if isinstance(found, Member) else NotElastic()


def _device(given: torch.device | str | None) -> torch.device:
    if given is None and not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if given is None else torch.device(given)
    if device.type == "cuda":
        # Otherwise torch's mesh takes the one of LOCAL_RANK, also if another one was given.
        torch.cuda.set_device(device)
        torch.cuda.init()
    return device
