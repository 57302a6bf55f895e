"""A rank's part in the generations of a job: after a death it meets the others again.

Survivors connect to the process that takes the place of the lost rank, and give it the state that
it needs. The replacement does the same from its side.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.distributed.tensor import DTensor

from holdfast import _native
from holdfast.errors import ConflictError, CorruptError, Error, NotFoundError, UnavailableError
from holdfast.options import Recover
from holdfast.torch.loop.saves import Saves
from holdfast.torch.recover import peers
from holdfast.torch.recover.agreement import Agreement
from holdfast.torch.recover.buddies import BuddyGate
from holdfast.torch.recover.connect_ranks import connect_ranks
from holdfast.torch.recover.crash_points import reach
from holdfast.torch.recover.group import Mode
from holdfast.torch.recover.islands import island_of
from holdfast.torch.recover.link import FewerWorkers
from holdfast.torch.recover.loop_draws import LoopDraws
from holdfast.torch.recover.messages import Messages, plan_replay
from holdfast.torch.recover.open_gate import OpenGate
from holdfast.torch.recover.records import Records
from holdfast.torch.recover.repeated_calls import RepeatedCalls, SkippedCalls, unpack_calls
from holdfast.torch.recover.replay import Replay, load_durable
from holdfast.torch.recover.sharing import Sharing
from holdfast.torch.recover.undo import Undo
from holdfast.torch.recover.updates import load_resting, make_again, plan_updates, seal_of_all
from holdfast.torch.recover.worker_side import WorkerSide, wait_for_end
from holdfast.torch.state.ddp_buckets import BucketOrders
from holdfast.torch.state.training_state import TrainingState

_LAST_WORDS = 0.02  # seconds to wait for what a lost rank has sent


class Membership:
    """The part of one worker of `holdfast launch`."""

    def __init__(self, side: WorkerSide, state: TrainingState, buckets: BucketOrders, run: str,
                 options: Recover) -> None:
        self.link, self.groups, self._side = side.link, side.groups, side
        self.gate: BuddyGate | None = None  # None in a job of one rank
        self.repeated = RepeatedCalls()
        self.records = Records(state, self.repeated)
        self.is_outside = False  # collective calls were made since the last batch, outside of run()
        self.draws = LoopDraws(state, self.records)
        self._agreement = Agreement(state, self.draws)
        self.messages = Messages(side.groups.log, options, state)
        self._sharing = Sharing(side.link, side.groups, self.messages, state, self.ask_to_restart)
        self.undo: Undo | None = None  # with Recover(undo=True)
        self.is_making_updates = False  # again, from what was kept of them
        self.durable: int | None = None  # the newest durable step when this generation began; equal on all ranks
        self._run = run
        self._must_agree = False  # no update was made since this process met a replacement
        self._is_new = False  # this process is a replacement, and has made no update yet
        self._has_compared_buffers = False  # in this generation, at its first gate
        self._knew_gradients = False  # that steps keep gradients was known when this generation began
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

    def agreed(self, step: int | None) -> None:
        """All ranks have agreed that this is the newest durable step; None if there is none."""
        self.durable = step
        self.messages.agree(self._transport)
        if self.gate is not None:
            self.gate.keep_apart(self.messages.islands)

    def commit_messages(self) -> None:
        """This rank is committed to the update: what was agreed on at its gate counts."""
        if self.messages.commit():
            assert self.gate is not None
            self.gate.keep_apart(self.messages.islands)
            self.link.say("islands", of=[[self.link.members[rank] for rank in one] for one in self.messages.islands])

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
        if self.link.world == 1 or self.link.is_helper:
            return None
        generation = self.link.generation  # a newer one may have been announced meanwhile
        if self.is_replacement:
            self.link.say("reached", phase="started")
            reach("started")
            generation = self.link.agree(dict)["generation"]
        self._transport = connect_ranks(self.link, generation)
        self.gate = (BuddyGate if self.undo is None else OpenGate)(self._transport, self.link.hosts)
        return self._transport

    def take_over(self) -> SkippedCalls | Replay:
        """Fills this replacement. Returns the calls that lead to where the others are, or the steps that do."""
        decided = self.link.agree(dict)
        arrive = _nothing
        try:
            assert self._transport is not None
            self._check_start_up()
            self.groups.on_unanswered = self.ask_to_restart
            with self.groups.silent():
                if self.undo is not None:
                    self.undo.share(self._transport, is_new=True)
                heard = peers.hear(self._transport, self._state, self.link.rank, self.groups.describe())
                made, told = None, {}
                if heard.lacks:
                    try:
                        plan = self._plan_updates(decided, heard)
                    except LookupError as error:
                        return self._begin_replay(decided, heard, f"{heard.lacks}: no other rank has it, and {error}")
                    made, told = self._make_updates(decided, heard, *plan)
                filled = peers.receive(self._transport, self._state, self._buckets, self.link.rank, heard, made)
            reach("filled")
            arrive = filled.arrive
            self.repeated.load(filled.repeated, filled.calls)
            self.records.load(filled.record)
            self.draws.take_over(filled.own)
            peers.wait_for(self._transport, heard.replaying, "messages")
            if told:
                self.messages.join(heard.messages(), decided["target"])
            self._become_part(decided, "replay", is_new=True, step=self.repeated.last_step + 1,
                              bytes=filled.moved, inexact=filled.inexact, **told)
        except Exception as error:
            # Nobody has what it needs, or what they have does not fit: no death of another rank.
            is_sure = isinstance(error, (LookupError, NotFoundError, CorruptError, ConflictError, ValueError))
            if not is_sure and self.link.hears_of_newer(decided["generation"]):
                wait_for_end()  # another rank died, and another process takes this one's place
            self.ask_to_restart(error)
        return SkippedCalls(self.repeated, self.ask_to_restart, arrive, self.has_batch)

    def _plan_updates(self, decided: dict[str, Any], heard: peers.Heard) -> tuple[int, int]:
        if heard.lacks_twin:
            raise LookupError("no other rank has parts of the same parameters")
        return plan_updates(heard.messages(), self.durable, decided["target"], self.link.rank)

    def _make_updates(self, decided: dict[str, Any], heard: peers.Heard, step: int,
                      after: int) -> tuple[set[str], dict[str, Any]]:
        """Loads the newest durable step, and makes the updates of the lost rank behind it again.

        Returns the names of the tensors that it has then, and what the launcher is told of it.
        """
        target = decided["target"]
        size = self._receive_log(heard, "updates", after, target)
        if self.durable is not None:
            load_resting(self._run, step, self._state)
        self.link.say("reached", phase="loaded")
        self.is_making_updates, self.groups.mode = True, "replay"  # a call of other ranks is an error
        try:
            make_again(self.groups.log, self._state, self.link.rank, after, target)
        finally:
            self.is_making_updates, self.groups.mode = False, "silent"
        heard.check_seal(seal_of_all(self._state, target))
        reach("filled")
        made = {name for _, name in self._state.resting()}
        return made, {"rung": "updates", "reason": f"{heard.lacks}: no other rank has it",
                      "replayed": target - after, "log_bytes": size}

    def _receive_log(self, heard: peers.Heard, rung: str, after: int, target: int) -> int:
        """Gets what others have kept for this rank. Returns how many bytes that are."""
        assert self._transport is not None
        log = self.groups.log.native
        heard.replaying = peers.answer(self._transport, (rung, after, target))
        before = log.bytes
        for other in sorted(heard.told):
            log.receive_from(self._transport, other, self._sharing.wanted(after, target))
        return int(log.bytes - before)

    def _begin_replay(self, decided: dict[str, Any], heard: peers.Heard, why: str) -> Replay:
        """Loads the newest durable step, and gets what others have said to the lost rank since then.

        `why` says why updates are not made again.
        """
        try:
            step, after, runs = plan_replay(heard.messages(), self.durable, decided["target"])
            self._check_island(set(heard.told), "lives")
        except LookupError as error:
            raise LookupError(f"{why}, and {error}") from None
        size = self._receive_log(heard, "messages", after, decided["target"])
        kept = heard.replaying
        self._check_island({one for one in range(self.link.world) if kept.get(one) != kept[self.link.rank]},
                           "does not make the same steps again")
        peers.wait_for(self._transport, heard.replaying, "updates")
        _native.change_layout(self._transport, _native.Pieces([]), _native.Pieces([]), peers.PATIENCE)
        twin = peers.twin_of(self._state, heard.told)["repeated calls"]
        reason = f"{heard.lacks}: no other rank has it"
        shares, alone = self._sharing.lead({"twin": twin, "step": step, "durable": self.durable, "after": after,
                                            "runs": runs})
        own = load_durable(self._run, step, self._state, self._buckets) if self.durable is not None else {}
        self.link.say("reached", phase="loaded")
        reach("filled")
        if len(island := self._island()) > 1:
            generation = decided["generation"]
            self.groups.connect_island(f"{self.link.incarnation}.{generation}", island,
                                       lambda: self.link.is_stale(generation))
        self.repeated.load(twin, [])
        self.repeated.begin_behind(step)
        self.messages.take_over(step, after)
        replay = Replay(decided, runs, heard.kept, unpack_calls(twin["before"]), size,
                        f"{reason}; no helpers: {alone}" if alone else reason)
        replay.shares = shares
        if replay.is_done:
            self.records.load(heard.kept["record"])
            self.draws.take_over(own)
        return replay

    def _island(self) -> list[int]:
        return island_of(self.messages.islands, self.link.rank)

    def _check_island(self, ranks: set[int], what: str) -> None:
        """LookupError if one of these ranks is in the island of this one."""
        if found := sorted(ranks.intersection(self._island())):
            raise LookupError(f"rank {found[0]}, of the same island, {what}")

    def help(self) -> Replay:
        """This process helps a replacement: gets what it needs from it, and loads the durable step, too."""
        try:
            self._check_start_up()
            self.groups.on_unanswered = self._sharing.fail
            with self.groups.silent():
                told, shares = self._sharing.follow()
                if told["durable"] is not None:
                    load_durable(self._run, told["step"], self._state, self._buckets)
            self.repeated.load(told["twin"], [])
            self.repeated.begin_behind(told["step"])
            self.messages.take_over(told["step"], told["after"])
            replay = Replay({}, told["runs"], {}, unpack_calls(told["twin"]["before"]), 0, "")
            replay.shares = shares
        except Exception as error:
            self._sharing.fail(error)
        return replay

    def end_replay(self, replay: Replay) -> None:
        """The replacement has come to where the others are: it joins them, if it has the right bits."""
        if replay.shares is not None:
            self.messages.end_sharing(replay.decided["target"])
        if why := replay.find_difference(self.records):
            self.ask_to_restart(ValueError(f"{why}: differs from what the lost rank had told, after "
                                           f"{replay.made} runs were made again"))
        generation = replay.decided["generation"]
        inexact = [f"{name}: was not given as data=, so that a replacement may have read other samples"
                   for name in self.repeated.unknown]
        try:
            assert self._transport is not None
            peers.tell(self._transport, {}, patience=None)
            self._become_part(replay.decided, "live", is_new=True, step=self.repeated.last_step + 1,
                              rung="messages", reason=replay.reason, replayed=replay.made,
                              log_bytes=replay.log_bytes, inexact=inexact,
                              **({} if replay.shares is None else replay.shares.told()))
        except (Error, TimeoutError, RuntimeError) as error:
            if self.link.hears_of_newer(generation):
                wait_for_end()  # another rank died, and another process takes this one's place
            self.ask_to_restart(error)

    def _check_start_up(self) -> None:
        """LookupError if a result of start-up is missing here that no other rank will give."""
        own = {_address(one) for one in self._state.model_tensors().values()}
        for tensor in self.groups.log.unanswered:
            if _address(tensor) not in own:
                raise LookupError(f"a collective call at start-up has returned {tensor.nbytes} bytes, "
                                  "which are not kept for a replacement; expected at most 1 MiB, or "
                                  "a tensor of the model")
        self.groups.log.unanswered.clear()

    def has_batch(self) -> bool:
        """True if the loop of this process has taken a batch."""
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
        self._saves.drop()
        reach("dropped")
        if self.undo is not None:
            self.undo.take_back(self.gate, decided["target"])
        kept = [one for one in self.gate.records() if one.peer in self.link.missing]
        has_moved = self.records.has_moved()
        if not (has_moved or self.records.is_at_end or self.repeated.is_top(has_moved)):
            self.records.make_at_end(self.repeated.calls)
        self._transport.replace(connect_ranks(self.link, decided["generation"]))
        if self.link.is_stale(decided["generation"]):  # on_lost() may have closed the old transport only
            raise UnavailableError("a rank was lost while ranks connected again")
        reach("met")
        self._rejoin_job()
        reach("rejoined")
        groups, transport = self.groups.describe(), self._transport
        if self.undo is not None:
            self.undo.share(transport)
        replaying = peers.give(
            transport, self._state, self._buckets, self._saves.objects(),
            repeated=self.repeated.state(has_moved), records=self.records, kept=kept,
            is_outside=self.is_outside, groups=groups, messages=self.messages.told(self.gate.peer),
            serve=lambda found: self.messages.serve(transport, found, groups, self.link.rank,
                                                    self.link.missing))
        reach("given")
        peers.wait_for(transport, replaying, "messages")
        self._become_part(decided, "live", **({} if self.undo is None else self.undo.told()))

    def _become_part(self, decided: dict[str, Any], mode: Mode, *, is_new: bool = False,
                     **told: Any) -> None:
        assert self.gate is not None
        generation = decided["generation"]
        self._must_agree, self._is_new, self._has_compared_buffers = True, is_new, False
        self._knew_gradients = self.repeated.gradients["are kept"]
        self.groups.replace(f"{self.link.incarnation}.{generation}",
                            lambda: self.link.is_stale(generation), mode)
        self.gate.begin(generation, decided["target"], self.records.newest)
        reach("joined")
        self.link.join(generation, **told)

    def pass_on_update(self) -> None:
        """At the gate, before this rank is ready: gives its buddy what its replacement may need."""
        assert self.gate is not None and self._transport is not None
        self.messages.pass_on(self.gate, self._transport)

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
        if self._transport is None:
            return
        if self._must_agree:
            if self.repeated.gradients["are kept"] and not self._knew_gradients:
                self._note("gradients of earlier steps: are kept since this step, and a replacement has none of them")
            self._note(self._agreement.compare_at_gate(self._transport, is_new=self._is_new))
            self._must_agree = False
        if not self._has_compared_buffers and self.undo is None:
            mine = self._state.peers.seals()
            self._state.peers.still.compare(mine, peers.tell(self._transport, mine, patience=None))
            self._has_compared_buffers = True

    def _note(self, why: str) -> None:
        """Has all ranks start again if they do not agree. Without a checkpoint, all steps would be lost."""
        if why and self.durable is not None:
            if self._agreement.unsaved:
                self.link.say("unsaved", what=self._agreement.unsaved)
            self.ask_to_restart(ValueError(why))
        self.link.inexact += self._agreement.inexact + ([why] if why else [])

    def leave_at_start(self) -> None:
        """As leave_if_told(), in a replacement that is where the others are: its program may not come
        to its next step, as that of the lost rank did not."""
        if self.link.leave is not None and not self.repeated.calls:
            self.groups.go_live()
            self.leave_if_told()

    def leave_if_told(self) -> None:
        """Saves the last step that is done and ends, if the launcher has told all ranks to."""
        told = self.link.leave
        if told is None:
            return
        # Between two runs of one step there is no step that is done, so that nothing is saved.
        if self.repeated.last_step >= 0 and self._saves is not None \
                and self.repeated.is_top(self.records.has_moved()):
            self._saves.record = self.records.values
            self._leave(self.repeated.last_step, told["why"], told["code"])
        raise SystemExit(told["code"])

    def ask_to_restart(self, error: Exception) -> NoReturn:
        """Has the launcher start all ranks again, this one too. Does not return."""
        self.link.say("restart", why=str(error))
        wait_for_end()


def _address(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage().data_ptr()


def _nothing(*_: Any) -> None: ...
