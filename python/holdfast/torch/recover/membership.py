"""A rank's part in the generations of a job: after a death it meets the others again.

Survivors connect to the process that takes the place of the lost rank, and give it the state that
it needs. The replacement does the same from its side.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from holdfast import _native
from holdfast.errors import NotFoundError, UnavailableError
from holdfast.torch.loop.saves import Saves
from holdfast.torch.recover import peers
from holdfast.torch.recover.agreement import Agreement
from holdfast.torch.recover.buddies import BuddyGate
from holdfast.torch.recover.crash_points import reach
from holdfast.torch.recover.group import Mode
from holdfast.torch.recover.link import FewerWorkers
from holdfast.torch.recover.loop_draws import LoopDraws
from holdfast.torch.recover.meet import meet
from holdfast.torch.recover.records import Records
from holdfast.torch.recover.trail import SkippedCalls, Trail
from holdfast.torch.recover.worker_side import WorkerSide, wait_for_end
from holdfast.torch.state.ddp_buckets import BucketOrders
from holdfast.torch.state.training_state import TrainingState

_LAST_WORDS = 0.02  # seconds to wait for what a lost rank has sent


class Membership:
    """The part of one worker of `holdfast launch`."""

    def __init__(self, side: WorkerSide, state: TrainingState, buckets: BucketOrders) -> None:
        self.link, self.groups, self._side = side.link, side.groups, side
        self.gate: BuddyGate | None = None  # None in a job of one rank
        self.trail = Trail()
        self.records = Records(state, self.trail)
        self.is_outside = False  # collective calls were made since the last batch, outside of run()
        self.draws = LoopDraws(state, self.records)
        self._agreement = Agreement(state, self.draws)
        self.has_checkpoint = False  # one was durable when this generation began; equal on all ranks
        self._must_agree = False  # no update was made since this process met a replacement
        self._is_new = False  # this process is a replacement, and has made no update yet
        self._state, self._buckets = state, buckets
        self._transport: _native.TcpTransport | None = None
        self._saves: Saves | None = None
        self._rejoin_job: Callable[[], None] = _nothing
        self._leave: Callable[[int, str, int], None] = _nothing
        side.tell_losses_to(self)

    @property
    def is_replacement(self) -> bool:
        """True until the state of the lost rank is here."""
        return self.link.is_unfilled

    @property
    def is_broken(self) -> bool:
        """True if a rank was lost, and this process has not met its replacement yet."""
        return not self.link.is_current

    def on_lost(self) -> None:
        """Called by another thread when a rank was lost: ends what waits for other ranks."""
        if self.gate is not None and self._transport is not None:
            self.gate.interrupt(self.link.announced - 1)
            self.gate.hear_last_words(_LAST_WORDS)
            self._transport.close()

    def serve(self, saves: Saves, rejoin: Callable[[], None],
              leave: Callable[[int, str, int], None]) -> None:
        """As Recovery.serve() says."""
        self._saves, self._rejoin_job, self._leave = saves, rejoin, leave

    def close(self) -> None:
        """This process is done with its training."""
        self._side.stop_telling(self)

    def check_not_broken(self) -> None:
        """UnavailableError if a rank was lost; also if the launcher says so in a moment."""
        if self.link.hears_of_loss(0.5):
            raise UnavailableError("a rank was lost")

    def connect(self) -> _native.TcpTransport | None:
        """The transport of the first generation, or of the one that a replacement joins."""
        if self.link.world == 1:
            return None
        generation = self.link.generation  # a newer one may have been announced meanwhile
        if self.is_replacement:
            self.link.say("started")
            reach("started")
            generation = self.link.agree(dict)["generation"]
        self._transport = meet(self.link, generation)
        self.gate = BuddyGate(self._transport, self.link.hosts)
        return self._transport

    def take_over(self) -> SkippedCalls:
        """Fills this replacement. Returns the calls that lead to where the others are."""
        decided = self.link.agree(dict)
        arrive = _nothing
        try:
            self._check_start_up()
            with self.groups.silent():
                filled = peers.receive(self._transport, self._state, self._buckets, self.link.rank,
                                       self.groups.describe())
            reach("filled")
            arrive = filled.arrive
            self.trail.load(filled.trail, filled.calls)
            self.records.load(filled.record)
            self.draws.take_over(filled.own)
            self.groups.on_unanswered = self.ask_to_restart
            self._become_part(decided, "replay", step=self.trail.last_step + 1, bytes=filled.moved,
                              inexact=filled.inexact)
        except Exception as error:
            # Nobody has what it needs, or what they have does not fit: no death of another rank.
            is_sure = isinstance(error, (LookupError, NotFoundError, ValueError))
            if not is_sure and self.link.hears_of_newer(decided["generation"]):
                wait_for_end()  # another rank died, and another process takes this one's place
            self.ask_to_restart(error)
        return SkippedCalls(self.trail, self.ask_to_restart, arrive, self._has_batch)

    def _check_start_up(self) -> None:
        """LookupError if a result of start-up is missing here that no other rank will give."""
        own = {_address(one) for one in self._state.model_tensors().values()}
        for tensor in self.groups.log.unanswered:
            if _address(tensor) not in own:
                raise LookupError(f"a collective call at start-up has returned {tensor.nbytes} bytes, "
                                  "which are not kept for a replacement; expected at most 1 MiB, or "
                                  "a tensor of the model")
        self.groups.log.unanswered.clear()

    def _has_batch(self) -> bool:
        loader = self._state.loader
        return loader is not None and loader.handed_out > 0

    def join(self, status: Callable[[], dict[str, Any]]) -> None:
        """Returns when this process is part of the newest generation.

        FewerWorkers if no process takes the place of a lost rank, and the others go on without it.
        """
        while self.is_broken:
            decided = self.link.agree(status)
            if self.link.fewer is not None:
                raise FewerWorkers
            try:
                self._rejoin(decided)
            except Exception as error:
                if self.link.is_closed:
                    self.link.give_up(error)
                if not self.link.hears_of_newer(decided["generation"]):
                    self.ask_to_restart(error)

    def _rejoin(self, decided: dict[str, Any]) -> None:
        assert self.gate and self._transport and self._saves
        kept = [one for one in self.gate.records() if one.peer in self.link.missing]
        has_moved = self.records.has_moved()
        if not (has_moved or self.records.is_at_end or self.trail.is_top(has_moved)):
            self.records.make_at_end(self.trail.calls)
        self._saves.drop()
        reach("dropped")
        self._transport.replace(meet(self.link, decided["generation"]))
        reach("met")
        self._rejoin_job()
        reach("rejoined")
        peers.give(self._transport, self._state, self._buckets, self._saves.objects(),
                   trail=self.trail.state(has_moved), records=self.records, kept=kept,
                   is_outside=self.is_outside, groups=self.groups.describe())
        reach("given")
        self._become_part(decided, "live")

    def _become_part(self, decided: dict[str, Any], mode: Mode, **told: Any) -> None:
        assert self.gate is not None
        generation = decided["generation"]
        self._must_agree, self._is_new = True, mode == "replay"
        self.groups.replace(f"{self.link.incarnation}.{generation}",
                            lambda: self.link.is_stale(generation), mode)
        self.gate.begin(generation, decided["target"], self.records.newest)
        reach("joined")
        self.link.join(generation, **told)

    def compare_starts(self) -> bool:
        """In the first step after a recovery: compares what ranks begin with. True if it did."""
        if not self._must_agree or self._transport is None:
            return False
        self.link.inexact = []  # what was found in a generation that another death has ended
        self._note(self._agreement.compare_starts(self._transport, self.records.values,
                                                  is_new=self._is_new))
        return True

    def compare_at_gate(self) -> None:
        """At the gate of that step: compares what ranks hold alike."""
        if self._must_agree and self._transport is not None:
            self._note(self._agreement.compare_at_gate(self._transport, is_new=self._is_new))
            self._must_agree = False

    def _note(self, why: str) -> None:
        """Has all ranks start again if they do not agree. Without a checkpoint, all steps would be lost."""
        if why and self.has_checkpoint:
            if self._agreement.unsaved:
                self.link.say("unsaved", what=self._agreement.unsaved)
            self.ask_to_restart(ValueError(why))
        self.link.inexact += self._agreement.inexact + ([why] if why else [])

    def leave_at_start(self) -> None:
        """As leave_if_told(), in a replacement that is where the others are: its program may not come
        to its next step, as that of the lost rank did not."""
        if self.link.leave is not None and not self.trail.calls:
            self.groups.go_live()
            self.leave_if_told()

    def leave_if_told(self) -> None:
        """Saves the last step that is done and ends, if the launcher has told all ranks to."""
        told = self.link.leave
        if told is None:
            return
        # Between two runs of one step there is no step that is done, so that nothing is saved.
        if self.trail.last_step >= 0 and self._saves is not None \
                and self.trail.is_top(self.records.has_moved()):
            self._saves.record = self.records.values
            self._leave(self.trail.last_step, told["why"], told["code"])
        raise SystemExit(told["code"])

    def ask_to_restart(self, error: Exception) -> None:
        """Has the launcher start all ranks again, this one too. Does not return."""
        self.link.say("restart", why=str(error))
        wait_for_end()


def _address(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage().data_ptr()


def _nothing(*_: Any) -> None: ...
