"""Several processes share the steps that the replacement of a lost pipeline stage makes again.

The launcher starts the helpers as it starts the replacement: each runs the program as the lost rank, but opens no
run and is no rank. They meet when the replacement knows which steps it makes, and get from it what others had said
to the lost rank. Then all of them make these steps:

  1. Of the micro-batches of a step, each process makes one of so many, with the random generators that the lost
     rank had before it (micro_batches.py). It receives for all, and sends nothing.
  2. Gradients of each micro-batch are kept apart. Each process adds up a part of all parameters, in the order of
     the micro-batches, as autograd does: so the bits are those of one process that makes them all. Sums of what
     each process has made would have others.
  3. All get the sums, and make the update. Losses and outputs of a last stage go to all, too.

The replacement then compares its record with that of the lost rank, as if it had been alone (replay.py). What was
shared in a wrong way makes all ranks start again; a helper that dies makes the replacement begin anew, alone.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from holdfast import _native
from holdfast.errors import Error, NotFoundError
from holdfast.torch.recover.connect_ranks import connect_helpers
from holdfast.torch.recover.inner_group import make_inner, shared
from holdfast.torch.recover.link import Link
from holdfast.torch.recover.micro_batches import Make, Watcher
from holdfast.torch.recover.peers import tell
from holdfast.torch.recover.record_bytes import unpack_states
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values import generators as random_generators

DRAWS = "draws"  # the name of an entry with the random generators of an update
_TIMEOUT = timedelta(minutes=30)  # of one exchange; a process that dies ends it at once
_SUMS, _OUTPUTS = 1 << 20, 1 << 21  # tags, behind those of the gradients

Range = list[tuple[int, int, int]]  # parameters with the elements that begin and end it


class Team:
    """The processes that share the steps. The replacement is number 0."""

    def __init__(self, link: Link) -> None:
        """Returns when all of them have met."""
        self.number, self.size = link.helper, link.helpers
        self.transport = connect_helpers(link)
        store = dist.PrefixStore(f"holdfast/{link.incarnation}.{link.born}/helpers of {link.rank}",
                                 shared.to_store(_TIMEOUT))
        self._group = make_inner("gloo", store, self.number, self.size, _TIMEOUT)

    def others(self) -> list[int]:
        """All but this process."""
        return [one for one in range(self.size) if one != self.number]

    def tell(self, message: Any) -> list[Any]:
        """What all tell each other, by number."""
        return tell(self.transport, message, patience=None)

    def send(self, to: int, tag: int, bytes_: torch.Tensor) -> Any:
        """Begins to send bytes, which must not change until the work that is returned is done."""
        return self._group.send([bytes_], to, tag)

    def receive(self, from_: int, tag: int, size: int) -> torch.Tensor:
        """As many bytes of another process."""
        bytes_ = torch.empty(size, dtype=torch.uint8)
        if size:
            self._group.recv([bytes_], from_, tag).wait()
        return bytes_


def read_draws(log: _native.CallLog, rank: int, updates: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    """The passes of each update, with the generators before each micro-batch. LookupError if they cannot be shared."""
    found = {}
    for update in updates:
        try:
            why, packed = log.find((update, "", DRAWS, rank, rank, 0))
        except NotFoundError:
            raise LookupError("nobody has kept what the lost rank drew in each micro-batch") from None
        if why:
            raise LookupError(why)
        found[update] = unpack_states(packed)
    if not any(found.values()):
        raise LookupError("no step has micro-batches of a pipeline")
    return found


class Shares(Watcher):
    """The part of one process."""

    def __init__(self, team: Team, state: TrainingState, passes: dict[int, list[dict[str, Any]]],
                 fail: Callable[[Exception], None]) -> None:
        """`passes` is what read_draws() returns; `fail` does not return."""
        self._team, self._state, self._fail = team, state, fail
        self._of_updates, self._passes = passes, deque[dict[str, Any]]()
        self._pass: dict[str, Any] | None = None  # that is being made
        self._left = 0  # its backward passes
        self._seconds = 0.0  # that the ends of passes took
        self._losses: list[Any] = []  # of the schedule
        self._parameters: list[torch.Tensor] = []
        self._before: list[torch.Tensor | None] = []  # gradients that its own are added to
        self._apart: dict[int, list[torch.Tensor | None]] = {}  # gradients of the micro-batches of this process

    def told(self) -> dict[str, Any]:
        """What the launcher is told: how many processes there are, and the seconds that they took for sums."""
        return {"helpers": self._team.size, "sums": self._seconds}

    def begin(self, update: int) -> None:
        """A run begins that makes this update again."""
        self._passes, self._pass = deque(self._of_updates.get(update, ())), None

    def forward(self, stage: Any, k: int, make: Make, *, keeps_output: bool) -> Any:
        if not stage.has_backward:
            return make()
        if self._pass is None:
            self._begin_pass(stage)
        assert self._pass is not None
        if self._is_own(k):
            random_generators.restore(self._pass["before"][k], self._state.generators)
            return make()
        if stage.is_last and keeps_output:
            stage.output_chunks.append(None)
        return None

    def backward(self, stage: Any, k: int, make: Make, *, is_whole: bool) -> None:
        if not stage.has_backward:
            return make()
        if self._is_own(k):
            make()
            self._apart[k] = [one.grad for one in self._parameters]
            self._set_gradients([None] * len(self._parameters))
        self._left -= 1
        if self._left == 0:
            began = time.perf_counter()
            try:
                self._end_pass(stage)
            except (Error, RuntimeError, ValueError, TimeoutError) as error:
                self._fail(error)
            self._seconds += time.perf_counter() - began

    def sends(self, stage: Any, k: int, make: Make) -> Any:
        return make() if self._is_own(k) or not stage.has_backward else []

    def loss(self, losses: list[Any], stage: Any, k: int, make: Make) -> None:
        if self._is_own(k) or not stage.has_backward:
            make()
        elif stage.is_last:
            losses.append(None)
        self._losses = losses

    def _is_own(self, k: int) -> bool:
        return k % self._team.size == self._team.number

    def _begin_pass(self, stage: Any) -> None:
        if not self._passes or len(self._passes[0]["before"]) != stage.chunks:
            self._fail(ValueError("a step that is made again has other micro-batches than the lost rank had"))
        self._pass, self._left, self._apart = self._passes.popleft(), stage.chunks, {}
        trained = [one for model in [*self._state.models, stage.submod] for one in model.parameters()]
        trained += [one for optimizer in self._state.optimizers for group in optimizer.param_groups
                    for one in group["params"]]
        self._parameters = list({id(one): one for one in trained}.values())
        self._before = [one.grad for one in self._parameters]
        self._set_gradients([None] * len(self._parameters))

    def _set_gradients(self, gradients: Sequence[torch.Tensor | None]) -> None:
        for one, gradient in zip(self._parameters, gradients, strict=True):
            one.grad = gradient

    def _end_pass(self, stage: Any) -> None:
        """All micro-batches were made: adds up what they gave."""
        assert self._pass is not None
        kept = stage.output_chunks if stage.is_last else []
        leaves = {k: self._leaves(k, kept) for k in self._apart} if stage.is_last else {}
        told = self._team.tell({
            "has": {str(k): [one is not None for one in grads] for k, grads in self._apart.items()},
            "leaves": {str(k): [spec, [_described(one) for one in flat]] for k, (spec, flat) in leaves.items()}})
        self._set_gradients(self._add({int(k): has for one in told for k, has in one["has"].items()}, stage.chunks))
        self._share_outputs(kept, {int(k): one for each in told for k, one in each["leaves"].items()}, leaves)
        random_generators.restore(self._pass["after"], self._state.generators)
        self._pass, self._apart, self._losses = None, {}, []

    # Gradients

    def _add(self, has: dict[int, list[bool]], many: int) -> list[torch.Tensor | None]:
        """The gradients of all micro-batches; `has` says for each which parameters have one."""
        team, ranges = self._team, _cut(self._parameters, self._team.size)
        works, held = [], []
        for k, grads in self._apart.items():
            flats = [None if one is None else _flat(one, of) for one, of in zip(grads, self._parameters, strict=True)]
            for other in team.others():
                if (part := _join(flats, ranges[other])).numel():
                    works.append(team.send(other, k, part))
                    held.append(part)
            self._apart[k] = flats
        sums: list[torch.Tensor | None] = [
            None if (before := self._before[one]) is None else
            _flat(before, self._parameters[one])[begin:end].clone() for one, begin, end in ranges[team.number]]
        for k in range(many):
            self._add_one(sums, ranges[team.number], has[k], k)
        for work in works:
            work.wait()
        return self._spread(sums, ranges, [any(has[k][place] for k in range(many)) or before is not None
                                           for place, before in enumerate(self._before)])

    def _add_one(self, sums: list[torch.Tensor | None], mine: Range, has: list[bool], k: int) -> None:
        """Adds the gradients of one micro-batch to the sums of this process."""
        present = [(at, *one) for at, one in enumerate(mine) if has[one[0]]]
        parts: Iterator[torch.Tensor]
        if k in self._apart:
            flats = self._apart[k]
            parts = iter([flats[one][begin:end] for _, one, begin, end in present])  # type: ignore[index]
        else:
            kinds = [(self._parameters[one].dtype, end - begin) for _, one, begin, end in present]
            size = sum(dtype.itemsize * many for dtype, many in kinds)
            parts = _split(self._team.receive(k % self._team.size, k, size), kinds)
        for (at, *_), part in zip(present, parts, strict=True):
            before = sums[at]
            sums[at] = part.clone() if before is None else before.add_(part)

    def _spread(self, sums: list[torch.Tensor | None], ranges: list[Range],
                present: list[bool]) -> list[torch.Tensor | None]:
        """Gives all processes the sums of each. Returns the gradients."""
        team = self._team
        made = [torch.empty_like(one.detach()) if is_there else None
                for one, is_there in zip(self._parameters, present, strict=True)]
        mine = [one.view(torch.uint8) for one in sums if one is not None]
        mine_in_one = torch.cat(mine) if mine else torch.empty(0, dtype=torch.uint8)
        works = [team.send(other, _SUMS, mine_in_one) for other in team.others() if mine_in_one.numel()]
        for number in range(team.size):
            there = [one for one in ranges[number] if present[one[0]]]
            kinds = [(self._parameters[one].dtype, end - begin) for one, begin, end in there]
            size = sum(dtype.itemsize * many for dtype, many in kinds)
            got = mine_in_one if number == team.number else team.receive(number, _SUMS, size)
            for (one, begin, end), part in zip(there, _split(got, kinds), strict=True):
                _as_flat(made[one])[begin:end].copy_(part)  # type: ignore[arg-type]
        for work in works:
            work.wait()
        for place, before in enumerate(self._before):
            if before is not None:
                made[place] = before.copy_(made[place])  # type: ignore[arg-type]
        return made

    # Losses and outputs of a last stage

    def _leaves(self, k: int, outputs: list[Any]) -> tuple[str, list[Any]]:
        flat, spec = pytree.tree_flatten([self._losses[k], outputs[k] if outputs else None])
        return pytree.treespec_dumps(spec), flat

    def _share_outputs(self, outputs: list[Any], told: dict[int, Any], own: dict[int, tuple[str, list[Any]]]) -> None:
        works, held = [], []
        for k, (_, flat) in own.items():
            if part := [_bytes_of(one) for one in flat if isinstance(one, torch.Tensor)]:
                held.append(torch.cat(part))
                works += [self._team.send(other, _OUTPUTS + k, held[-1]) for other in self._team.others()]
        for k, (spec, described) in sorted(told.items()):
            if k not in own:
                loss, output = self._receive_outputs(k, spec, described)
                self._losses[k] = loss
                if outputs:
                    outputs[k] = output
        for work in works:
            work.wait()

    def _receive_outputs(self, k: int, spec: str, described: list[Any]) -> Any:
        kinds = [(getattr(torch, one["dtype"]), one["shape"]) for one in described if "dtype" in one]
        size = sum(dtype.itemsize * torch.Size(shape).numel() for dtype, shape in kinds)
        got = self._team.receive(k % self._team.size, _OUTPUTS + k, size)
        device = self._parameters[0].device if self._parameters else "cpu"
        parts = _split(got, [(dtype, torch.Size(shape).numel()) for dtype, shape in kinds])
        leaves = [next(parts).reshape(one["shape"]).to(device) if "dtype" in one else one["value"] for one in described]
        return pytree.tree_unflatten(leaves, pytree.treespec_loads(spec))


def _described(leaf: Any) -> dict[str, Any]:
    if isinstance(leaf, torch.Tensor):
        return {"dtype": str(leaf.dtype).removeprefix("torch."), "shape": list(leaf.shape)}
    return {"value": leaf}


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _cut(parameters: Sequence[torch.Tensor], many: int) -> list[Range]:
    """Cuts all elements of the parameters into so many parts of the same size."""
    most = -(-sum(one.numel() for one in parameters) // many)
    made: list[Range] = [[] for _ in range(many)]
    at = 0
    for place, one in enumerate(parameters):
        begin = 0
        while begin < one.numel():
            part = at // most
            end = min(one.numel(), begin + (part + 1) * most - at)
            made[part].append((place, begin, end))
            at, begin = at + end - begin, end
    return made


def _as_flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor without gaps, as they are in memory."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def _flat(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The elements of a gradient in the order in which those of its parameter are in memory, on the host."""
    if gradient.dtype != parameter.dtype or gradient.layout is not torch.strided:
        raise ValueError(f"a gradient is {gradient.dtype} {gradient.layout}; expected that of its parameter, "
                         f"{parameter.dtype}")
    like = torch.empty_like(parameter.detach())
    if gradient.stride() != like.stride():
        gradient = like.copy_(gradient)
    return _as_flat(gradient.detach()).cpu()


def _join(flats: Sequence[torch.Tensor | None], part: Range) -> torch.Tensor:
    """The bytes of a part of the gradients, one behind the other."""
    found = [(flats[one], begin, end) for one, begin, end in part]
    pieces = [one[begin:end].view(torch.uint8) for one, begin, end in found if one is not None]
    return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.uint8)


def _split(joined: torch.Tensor, kinds: Sequence[tuple[torch.dtype, int]]) -> Iterator[torch.Tensor]:
    """The pieces of joined bytes, each with its dtype and number of elements."""
    at = 0
    for dtype, many in kinds:
        size = dtype.itemsize * many
        yield joined[at:at + size].clone().view(dtype)
        at += size


def end_helper(code: int) -> None:
    """Ends a process that has helped, at once: what its program does at its end is the replacement's."""
    os._exit(code)
