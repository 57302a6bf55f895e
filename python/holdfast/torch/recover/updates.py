"""What the updates of a rank consume, kept by its buddy: a replacement makes them again without computing.

This is for ranks whose tensors nobody else has, because they are cut over ranks (FSDP2, tensor parallelism):

  1. At the gate of each update, before it is ready, a rank gives its buddy an entry: its local gradients
     and the options of all parameter groups. The buddy keeps it in its log (call_log.py).
  2. The replacement reads its part of the newest durable step. Then the program's own optimizer makes the
     updates behind it, one after the other, with the gradients that were kept. There is no forward pass
     and no backward pass, and no call of another rank.
  3. All else comes from the record and from other ranks, as if one of them had the tensors (peers.py).

An entry also says what its update depends on: the number of threads, and a seal of the parameters before
it. If something differs, all ranks start again. Calls of other ranks in an update, and writes between two
updates, end the log of that rank, and its next entry says why. So do other gradients and random numbers, for which
the first updates are looked at, and some later ones.
"""

import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from holdfast import _native
from holdfast.torch.recover.buddies import BuddyGate
from holdfast.torch.recover.call_log import CallLog, Key
from holdfast.torch.recover.record_bytes import are_alike
from holdfast.torch.recover.replay import read_alone
from holdfast.torch.state.change_detection import TensorVersions
from holdfast.torch.state.gradients import gradient_like, is_like
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values.boxes import local_of
from holdfast.torch.values.dotted_names import name_a_few
from holdfast.torch.values.dtypes import tensor_from

_SEALED, _SEALED_ELEMENTS = 16, 64  # tensors in a seal, and elements of each
_LOOKED_AT, _EACH = 20, 16  # how many first updates are looked at, and one of how many later ones


class Updates:
    """The part of one rank."""

    def __init__(self, log: CallLog, state: TrainingState) -> None:
        self._log, self._state = log, state
        self.why_not = ""  # why the updates of this rank cannot be made again
        self.size = 0  # bytes of the newest entry
        self.seconds = 0.0  # that gates have taken for entries
        self.peer_said: dict[str, Any] = {}  # what the newest entry of the peer says of that rank
        self._made = 0  # updates that were seen to consume what was kept
        self._is_prepared = False  # an entry was made
        self._optimizer: Any = None  # that makes the update whose gate is passed
        self._is_updating = False  # it is in its step() now
        self._entry: tuple[str, list[torch.Tensor]] = "", []
        self._seal = 0  # of the gradients in it
        self._generators: Any = None  # before the update; None if it is not looked at
        self._versions, self._since = TensorVersions({}), list[int]()  # of parameters, behind the last update
        state.on_forget.append(self._forget)

    def refuse(self, why: str) -> None:
        """The updates of this rank cannot be made again from what is kept."""
        self.why_not = self.why_not or why

    def prepare(self, update: int, optimizer: Any, written: Sequence[str]) -> None:
        """At the gate of an update: makes the entry. The step has written to these tensors already.

        `optimizer` makes the update; None if there is none to make.
        """
        if names := [*written, *self._versions.changed(self._since)]:
            self.refuse(f"{name_a_few(names)}: written to outside of an optimizer")
        self._is_prepared, self._optimizer = True, optimizer
        gradients: list[torch.Tensor | None] = []
        if optimizer is not None and not self.why_not:
            gradients = self._gradients_of(optimizer)
        told = {"refused": self.why_not, "made": self._made}
        if not self.why_not:
            told |= {"threads": torch.get_num_threads(), "options": self._state.peers.options()}
        if optimizer is not None and not self.why_not:
            parameters = _parameters(optimizer)
            told |= {"optimizer": self._place_of(optimizer), "seal": seal(parameters, update),
                     "gradients": [None if one is None else [str(one.dtype).removeprefix("torch."), list(one.shape)]
                                   for one in gradients]}
            self._seal = seal(gradients, update)
            looks = self._made < _LOOKED_AT or update % _EACH == 0
            self._generators = self._state.peers.generators() if looks else None
        tensors = _on_host([one for one in gradients if one is not None])
        self._entry, self.size = (_pack(told), tensors), sum(one.nbytes for one in tensors)

    def pass_on(self, gate: BuddyGate, update: int) -> None:
        """Gives the entry to the buddy, and keeps that of the peer."""
        text, tensors = self._entry
        try:
            said = gate.pass_on(self._log.native, key_of(update, gate.rank), text,
                                [(one.data_ptr(), one.nbytes) for one in tensors])
            told = _unpack(said)
            self.peer_said = {"refused": told["refused"], "made": told["made"]}
        except OSError:
            if self._log.native.hole != update:
                raise
            # There was no room for it, and the log tells of that.

    def _gradients_of(self, optimizer: Any) -> list[torch.Tensor | None]:
        """The local gradients of the parameters of an optimizer."""
        if self._place_of(optimizer) is None:
            self.refuse("an optimizer that the Checkpointer was not given makes the update")
        if getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None:
            self.refuse("its optimizer divides gradients by the scale in its update")
        parameters = _parameters(optimizer)
        if any(one.grad is not None and one.grad.layout is not torch.strided for one in parameters):
            self.refuse("a gradient is sparse")
        elif not all(one.grad is None or is_like(one.grad, one) for one in parameters):
            self.refuse("a gradient is cut over ranks in another way than its parameter")
        return [] if self.why_not else [None if one.grad is None else local_of(one.grad) for one in parameters]

    def _place_of(self, optimizer: Any) -> int | None:
        return next((place for place, one in enumerate(self._state.optimizers) if one is optimizer), None)

    def begin_update(self, optimizer: Any) -> None:
        """The optimizer begins to write, behind the gate."""
        if not self._is_prepared or self._is_updating:  # a step() may call that of its base class
            return
        self._is_updating = True
        if optimizer is not self._optimizer:
            self.refuse("a step makes several updates behind one gate; expected one ck.run() for each")
        self._optimizer = None

    def note_call(self, name: str) -> None:
        """This rank calls others."""
        if self._is_updating:
            self.refuse(f"its optimizer calls {name} of other ranks in its update")

    def end_update(self, optimizer: Any, update: int) -> None:
        """The optimizer has made the update: has it consumed what was kept?"""
        if not self._is_updating:
            return
        self._is_updating = False
        if self.why_not or self._place_of(optimizer) is None:
            return
        began = time.perf_counter()
        if self._generators is not None:
            self._look_at(optimizer, update)
        self._made += 1
        self.look_from_here()
        self.seconds += time.perf_counter() - began

    def _look_at(self, optimizer: Any, update: int) -> None:
        now = [None if one.grad is None else local_of(one.grad) for one in _parameters(optimizer)]
        if seal(now, update) != self._seal:
            self.refuse("gradients change between the gate and the end of the update")
        if not are_alike(self._generators, self._state.peers.generators()):
            self.refuse("its optimizer draws random numbers in its update")

    def look_from_here(self) -> None:
        """From here to the next gate, nothing writes to parameters."""
        if not self._since:
            self._versions = TensorVersions(self._state.parameters())
        self._since = self._versions.now()

    def _forget(self) -> None:
        """Parameters may have been replaced."""
        self._versions, self._since = TensorVersions({}), []

    def seal_at_end(self, update: int) -> dict[str, Any]:
        """What a record of the end of an update has: a seal of parameters. To read those of a GPU takes time."""
        is_on_gpu = any(one.is_cuda for one in _all_parameters(self._state))
        return {} if is_on_gpu else {"after": seal_of_all(self._state, update)}


def make_again(log: CallLog, state: TrainingState, rank: int, after: int, through: int) -> None:
    """Makes the updates of a lost rank behind one and up to another again.

    LookupError, NotFoundError, CorruptError or ValueError if that is not possible: parameters are then
    somewhere in between.
    """
    for update in range(after + 1, through + 1):
        text, body = log.native.find(key_of(update, rank))
        entry = _unpack(text)
        if entry["refused"]:
            raise LookupError(f"update {update}: {entry['refused']}")
        if entry["threads"] != torch.get_num_threads():
            raise ValueError(f"update {update}: the lost rank had {entry['threads']} threads, and its replacement "
                             f"has {torch.get_num_threads()}; expected as many")
        if "optimizer" in entry:
            _make(state, entry, body, update)


def _make(state: TrainingState, entry: Mapping[str, Any], body: bytes, update: int) -> None:
    """Makes one update."""
    optimizer = state.optimizers[entry["optimizer"]]
    parameters = _parameters(optimizer)
    if seal(parameters, update) != entry["seal"]:
        raise ValueError(f"update {update}: the parameters before it are not those that the lost rank had")
    if len(parameters) != len(entry["gradients"]):
        raise ValueError(f"update {update}: gradients of {len(entry['gradients'])} parameters, and the optimizer "
                         f"has {len(parameters)}; expected as many")
    state.peers.load_options(entry["options"])
    at = 0
    for one, told in zip(parameters, entry["gradients"], strict=True):
        if told is None:
            one.grad = None
            continue
        dtype, shape = told
        size = local_of(one).numel() * getattr(torch, dtype).itemsize
        one.grad = gradient_like(one, tensor_from(body[at:at + size], dtype, shape))
        at += size
    optimizer.step()
    for one in parameters:
        one.grad = None


def load_resting(run: str, step: int, state: TrainingState) -> None:
    """Loads this rank's parameters and moments of a durable step, alone.

    Raises what read_alone() raises.
    """
    state.load_optimizers(read_alone(run, step, state))


def plan_updates(told: dict[int, Any], durable: int | None, target: int, rank: int) -> tuple[int, int]:
    """Behind which step, and after which update, the replacement of that rank begins.

    `told` has what Messages.told() says on each survivor. LookupError if the logs do not have it all.
    """
    buddy = next((other for other, one in told.items() if one["keeps of"] == rank), None)
    if buddy is None:
        raise LookupError("its buddy, which had kept its updates, is lost, too")
    log = told[buddy]
    if why := log["why not"]["updates"]:
        raise LookupError(f"rank {buddy} keeps no updates: {why}")
    step, after = durable_in(told, durable)
    if target == after:
        return step, after
    if why := log["peer said"].get("refused", "nothing was passed on yet"):
        raise LookupError(f"updates of rank {rank} are not kept: {why}")
    if log["whole after"] > after:
        raise LookupError(f"rank {buddy} has not kept all updates of rank {rank} since step {step}")
    if not log["peer said"]["made"]:
        raise LookupError(f"rank {rank} was not seen to make an update from what was kept")
    return step, after


def durable_in(told: dict[int, Any], durable: int | None) -> tuple[int, int]:
    """The newest durable step, and the update that ended it. LookupError if no log knows it."""
    step = -1 if durable is None else durable
    after = next((dict(one["update of"])[step] for one in told.values() if step in dict(one["update of"])), None)
    if after is None:
        raise LookupError("the newest checkpoint is older than what is kept")
    return step, after


def key_of(update: int, rank: int) -> Key:
    """The key of an entry."""
    return update, "", "gradients", rank, rank, 0


def seal(tensors: Sequence[torch.Tensor | None], update: int) -> int:
    """A checksum of some elements of some of the tensors, others in each update."""
    chosen = [tensors[(update * _SEALED + k) % len(tensors)] for k in range(min(_SEALED, len(tensors)))]
    parts = [_sample(one) for one in chosen if one is not None]
    if on_gpu := [one for one in parts if one.is_cuda]:  # in one copy
        parts = [torch.cat(on_gpu).cpu(), *(one for one in parts if not one.is_cuda)]
    # cat() copies: after numpy(), the memory of a parameter could not be freed in a change of layout.
    return zlib.crc32(torch.cat(parts).numpy()) if parts else 0


def seal_of_all(state: TrainingState, update: int) -> int:
    """The seal of all parameters that optimizers have."""
    return seal(_all_parameters(state), update)


def _all_parameters(state: TrainingState) -> list[torch.Tensor]:
    return [one for optimizer in state.optimizers for one in _parameters(optimizer)]


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Some elements of a tensor, as bytes."""
    flat = local_of(tensor).reshape(-1)
    return flat[:: max(1, flat.numel() // _SEALED_ELEMENTS)][:_SEALED_ELEMENTS].contiguous().view(torch.uint8)


def _on_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors in main memory, each in one piece."""
    made = [torch.empty(one.shape, dtype=one.dtype, pin_memory=True).copy_(one, non_blocking=True)
            if one.is_cuda else one.contiguous() for one in tensors]
    if any(one.is_cuda for one in tensors):
        torch.cuda.current_stream(tensors[0].device).synchronize()
    return made


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _pack(told: dict[str, Any]) -> str:
    return _native.encode_objects(told).decode()


def _unpack(text: str) -> dict[str, Any]:
    told: dict[str, Any] = _native.decode_objects(text.encode())
    return told
