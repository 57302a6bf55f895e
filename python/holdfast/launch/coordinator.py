"""Decides who is part of the job: it alone makes generations.

A generation is a set of processes, one for each rank. When a rank was lost, the survivors say where
they are in their update, and are told what to do about it; a new process takes the lost rank's
place, is filled by the others, and all go on as the next generation. Where that is impossible, all
ranks start again from the newest checkpoint.
"""

import secrets
import signal
import time
from typing import Any

from holdfast.launch.changes import Attempt, Changes
from holdfast.launch.decisions import decide, outcome_of
from holdfast.launch.ending import CONTINUES_LATER, GAVE_UP, Ending
from holdfast.launch.hosts import Host, Hosts
from holdfast.launch.losses import Loss, Losses
from holdfast.launch.options import Options
from holdfast.launch.rank import Rank
from holdfast.launch.ranks import Ranks, end_hang
from holdfast.launch.recoveries import Recovery, say, words_of
from holdfast.launch.room import Room
from holdfast.launch.worker_identity import STOPPED

_TO_AGREE = 20.0  # seconds for ranks to say where they are, after a death


class Coordinator:
    """All decisions about one job."""

    def __init__(self, options: Options, port: int) -> None:
        """`port` is that of the store of the job, on this host."""
        self._options = options
        # What every worker must know of the job.
        self._job = {"id": secrets.token_hex(8), "address": options.address, "port": port}
        self._hosts: Hosts | None = None
        self._ranks = Ranks(can_change=options.most > 1)
        self._target = 0  # the update of the last decision
        self._recovery: Recovery | None = None
        self._losses = Losses()
        self._lost: list[tuple[Loss, float]] = []  # deaths, with their times, not acted upon yet
        self._ending = Ending(self._ranks)
        self._wait_until: float | None = None  # when the wait for another host ends
        self._signalled: set[Host] = set()  # hosts whose launchers have got a signal
        self._code: int | None = None
        self._room = Room(self._ranks, options, self._job)
        self._changes = Changes(
            self._ranks, self._room,
            lambda why: self._restart(why, time.monotonic(), self._ranks.newest_step()),
            self._change_committed)
        self._said_change, self._said_helps = self._changes.hear, self._ranks.helpers.told
        self._said_unsaved, self._said_islands = self._ranks.hear_unsaved, self._ranks.hear_islands

    def begin(self, hosts: Hosts) -> None:
        """Begins when all hosts are there."""
        self._hosts = self._room.hosts = hosts
        self._wait_until = time.monotonic() + self._options.wait
        self.host_came(hosts.living[0])

    def outcome(self) -> int | None:
        """The exit code of the job, once all workers have ended and none is replaced."""
        codes = self._ranks.codes()
        if self._code is not None or self._wait_until is not None or None in codes:
            return self._code
        return self._ending.code()

    def signal(self, number: int, host: Host | None = None) -> None:
        """Passes on a signal to the launcher of a host, by default of this one; workers save and stop
        after it. A second Ctrl-C ends them."""
        host = host or self._all.living[0]
        # srun sends a Ctrl-C to all launchers at once: only that of the same host is the second one.
        is_second = number == signal.SIGINT and host in self._signalled
        self._signalled.add(host)
        if not self._ranks.all or is_second:
            return self._end(STOPPED if number != signal.SIGINT else 128 + number)
        self._ending.is_stopping = True
        self._all.hurry()
        if self._wait_until is not None:
            self._wait_until = 0.0  # it must save now
        passed = signal.SIGTERM if number == signal.SIGINT else number
        self._all.do_all({"do": "signal", "number": int(passed), "serials": self._ranks.serials_to_stop()})

    def store_lost(self) -> None:
        """The store of the job has died: without it, no replacement can meet the others."""
        say("the store of the job has died, without which no lost rank can be replaced: all ranks save, "
            "and the job ends; it continues when it is started again")
        self.signal(signal.SIGTERM)

    def tick(self) -> None:
        """Called often."""
        # The ranks that are left can go on without a lost one once they know behind which step they are.
        more = _TO_AGREE if self._is_filling and not self._ranks.decided else 0.0
        if self._wait_until is not None and time.monotonic() > self._wait_until + more:
            self._wait_until = None
            self._go_on_without_hosts()
        if self._all.is_any_away:
            return self._ranks.have_patience()
        if self._options.hang > 0 and self._ranks.all and self._code is None:
            self._end_hangs(self._options.hang)

    def settle(self) -> None:
        """Called after each round of reports: ranks that died together are lost together."""
        self._act_on_deaths()
        self._changes.grow()
        self._ranks.flush_events()

    def close(self) -> None:
        """Called at the end of the job."""
        if self._ending.leaving is None:
            self._supersede()
        self._all.do_all({"do": "close"})

    # Hosts

    @property
    def _all(self) -> Hosts:
        assert self._hosts is not None
        return self._hosts

    def ranks_of(self, host: int) -> int | None:
        """How many ranks a host has; None if it has none, or as long as that is not decided."""
        return self._ranks.number_on(host) or None

    def host_came(self, host: Host) -> None:
        """A host is there, or a spare that may take the place of one."""
        if self._ranks.all:
            self._changes.host_came()
            self._start_missing()
        elif not self._all.missing:
            self._wait_until = None
            self._ranks.place({number: one.ranks for number, one in self._all.living.items()})
            self._start_missing()

    def host_lost(self, host: Host, why: str) -> None:
        """A host is gone, with all its ranks."""
        say(f"host {host.number}: {why}")
        for rank in self._ranks.living():
            if rank.host is host:
                self._on_ended(rank, {"code": -signal.SIGKILL, "why": f"host {host.number} is lost",
                                      "step": rank.step, "ago": time.monotonic() - host.heard})

    def orphaned(self, rank: int, pid: int) -> None:
        """A rank has said that the launcher of its host has died."""
        if (host := self._ranks.host_of(rank, pid)) is not None:
            self._all.launcher_died(host)

    def _start_missing(self) -> None:
        """Starts the ranks that have no process, if their host is there."""
        if self._lost or self._code is not None or self._changes.is_attempted \
                or (self._ending.is_stopping and not self._is_filling):
            return
        self._all.fill_places(self.ranks_of)
        for rank in self._ranks.all:
            host = self._all.living.get(rank.home)
            if rank.exit_code not in (None, 0, STOPPED) and host is not None:
                self._start(rank, host)
        waits = any(rank.exit_code not in (None, 0, STOPPED) for rank in self._ranks.all)
        if waits and self._ending.is_stopping:
            self._wait_until = 0.0  # the others must save now
        elif waits and self._wait_until is None:
            self._wait_until = self._all.absent_since + self._options.wait
            say(f"waits up to {max(0.0, self._wait_until - time.monotonic()):.0f} s for another host in "
                f"place of {self._all.names_of_missing}")
        elif not waits:
            self._wait_until = None

    def _start(self, rank: Rank, host: Host) -> None:
        started = self._ranks.start(rank, host, self._job)
        if self._ending.leaving is not None:
            started.tell(say="leave", **self._ending.leaving)

    def _change_committed(self, attempt: Attempt) -> None:
        """The ranks are others now, and begin to count their updates anew."""
        self._target, self._ranks.islands = 0, []
        if attempt.after_loss and self._recovery is not None:
            return self._recovery.go_on_as(attempt.to)
        self._recovery = None

    def _go_on_without_hosts(self) -> None:
        """No other host came in time."""
        late = f"{self._all.names_of_missing}: not there"
        if not self._ending.is_stopping:  # a stop signal ends the wait at once
            late += f" after {self._options.wait:g} s"
        if not self._ranks.all:
            say(f"{late}; expected a launcher there with --at {self._options.at_text}")
            return self._end(GAVE_UP)
        if not self._ranks.has_begun or self._ending.leaving is not None:
            say(f"{late}: {CONTINUES_LATER}")
            return self._end(self._ending.code_if_unsaved())
        if not self._ending.is_stopping and self._changes.fewer(late):
            return
        say(f"{late}: processes on the other hosts take the places of its ranks, all ranks save, "
            "and the job ends; it continues when it is started again")
        self._leave(STOPPED, late)
        hosts = list(self._all.living.values())
        for k, rank in enumerate(self._ranks.missing()):
            self._start(rank, hosts[k % len(hosts)])

    # What is reported

    def report(self, host: Host, report: dict[str, Any]) -> None:
        """Something happened on a host."""
        kind = report["say"]
        if kind == "signal":
            self.signal(report["number"], host)
        elif kind == "log":
            self._ranks.keep_log(host, {key: report[key] for key in ("rank", "at", "data")})
        elif kind not in ("alive", "beat") and self._ranks.all \
                and not self._ranks.helpers.hear(host, report, is_filling=self._is_filling):
            rank = self._ranks.of(report["rank"])
            if rank is not None and rank.serial == report["serial"] and rank.host is host:
                getattr(self, f"_on_{kind}")(rank, report)

    def _on_born(self, rank: Rank, report: dict[str, Any]) -> None:
        rank.pid = report["pid"]
        if rank not in self._ranks.all:
            say(f"worker {rank.number} starts, for a place in the job (pid {rank.pid})")
        elif not rank.is_whole:
            say(f"generation {self._ranks.generation}: {self._ranks.name(rank)} starts again (pid {rank.pid})")

    def _on_message(self, rank: Rank, report: dict[str, Any]) -> None:
        getattr(self, f"_said_{report['message'].pop('say')}")(rank, report["message"])

    def _on_ended(self, rank: Rank, report: dict[str, Any]) -> None:
        code = rank.exit_code = report["code"]
        how = words_of(code, report["why"] or rank.failed.get("why", ""))
        if self._changes.ended(rank, how):
            return
        if code == (self._ending.leaving or {}).get("code") and rank.is_whole and not rank.failed:
            return
        if code in (0, STOPPED):
            rank.left_at = report["step"], time.monotonic() - report["ago"]
            return self._find_left()
        order = self._ranks.order_of(rank)
        loss = Loss(order, report["step"], code, report["why"] or rank.failed.get("why", ""),
                    rank.failed.get("is_final", code > 0))
        say(f"{self._ranks.name(rank)} (pid {rank.pid}) died {loss.where}: {how}")
        self._ranks.emit("rank_lost", rank=order, pid=rank.pid, step=loss.step, why=how,
                         generation=self._ranks.generation)
        if self._is_filling or self._ending.needs(code):
            self._lost.append((loss, time.monotonic() - report["ago"]))

    def _find_left(self) -> None:
        """Finds ranks that have ended as if all was well while another one waits for them."""
        waiting = next((one for one in self._ranks.living() if one.is_cut_off), None)
        for rank in self._ranks.all:
            if waiting is None or self._ending.is_saved or not rank.has_left_early:
                continue
            code, (step, at) = rank.exit_code, rank.left_at
            rank.left_at = None
            loss = Loss(rank.number, step, STOPPED if code == STOPPED else GAVE_UP)
            loss.left = f"rank {rank.number} (pid {rank.pid}) has left {loss.where} with exit code {code}"
            say(f"{loss.left}, and rank {waiting.number} waits for it")
            if waiting.is_open:
                self._ranks.emit("rank_lost", rank=rank.number, pid=rank.pid, step=step,
                                 why=f"exit code {code}", generation=self._ranks.generation)
                rank.exit_code = GAVE_UP
                self._lost.append((loss, at))

    # Deaths

    @property
    def _is_filling(self) -> bool:
        """True while survivors wait for the replacements of lost ranks."""
        done = self._recovery
        return done is not None and not done.is_filled and not done.is_restart

    def _act_on_deaths(self) -> None:
        if self._lost and self._code is None:
            lost, self._lost = self._lost, []
            self._on_loss(lost)

    def _on_loss(self, lost: list[tuple[Loss, float]]) -> None:
        self._changes.drop()
        # A rank that ends with an error may have lost its connection to one that was killed.
        cause, began = min(lost, key=lambda one: (one[0].code > 0, one[1]))
        if self._ending.leaving is not None:
            say(f"not all ranks could save: {CONTINUES_LATER}")
            return self._end(self._ending.code_of_leaving())
        if any(one.exit_code in (0, STOPPED) and one.left_at for one in self._ranks.all):
            say("other ranks have ended already: the job ends")
            return self._end(cause.code)
        self._ranks.end_islands(say)
        can_recover = self._ranks.has_begun and any(one.is_whole for one in self._ranks.living()) \
            and not self._ranks.why_plain()
        if why := cause.left or self._losses.why_no_more(cause, self._ranks.has_begun):
            if not can_recover:
                say(f"{why}: the job ends")
                return self._end(GAVE_UP if cause.left else cause.code)
            say(f"{why}: all ranks save what is done, and the job ends")
            self._leave(cause.code if cause.code > 0 else 128 - cause.code, why)
        if can_recover:
            return self._recover(cause, began)
        why = self._ranks.why_plain() or (
            "no rank is left that has the state" if self._ranks.has_begun else
            "a rank died before the first update of all ranks was made")
        self._restart(why, began, cause.step)

    def _recover(self, cause: Loss, began: float) -> None:
        self._supersede()
        self._ranks.next_generation()
        self._recovery = Recovery(self._ranks.generation, self._first_death(began), cause.step)
        missing = [self._ranks.order_of(rank) for rank in self._ranks.missing()]
        for rank in self._ranks.living():
            rank.tell(say="lost", generation=self._ranks.generation, ranks=missing)
        self._recovery.reach("seen")
        self._start_missing()

    def _first_death(self, began: float) -> float:
        """Since when the training stands still: the death of a recovery that has failed counts, too."""
        return min([began, *(one.began for one in [self._recovery] if one), *(at for _, at in self._lost)])

    def _restart(self, why: str, began: float, step: int) -> None:
        if self._ending.is_stopping:
            say(f"{why}: the job ends, as it was asked to, and continues from its newest checkpoint "
                "when it is started again")
            return self._end(self._ending.code_if_unsaved())
        say(f"all ranks start again{' from the newest checkpoint' * self._ranks.has_checkpointer}: {why}")
        self._all.do_all({"do": "close"})
        self._changes.forget()
        self._ranks.next_incarnation()
        self._target = 0
        self._recovery = Recovery(self._ranks.generation, self._first_death(began), step, why)
        self._recovery.note_inexact(self._ranks.unsaved)
        self._recovery.reach("seen")
        self._start_missing()

    def _leave(self, code: int, why: str) -> None:
        """Has all ranks save the last step that is done, as soon as they are whole, and end."""
        self._ending.leaving = {"code": code, "why": why}
        for rank in self._ranks.living():
            rank.tell(say="leave", **self._ending.leaving)

    def _end(self, code: int) -> None:
        self._code = (code if code >= 0 else 128 - code) or GAVE_UP
        self._all.do_all({"do": "close"})

    def _restart_unless_vain(self, rank: Rank, why: str) -> None:
        """Starts all ranks again although none died, unless that was done for this step before."""
        if no_more := self._losses.why_no_more(Loss(rank.number, rank.step, -1, why), True):
            say(f"{no_more}: the job ends")
            return self._end(GAVE_UP)
        self._restart(why, time.monotonic(), rank.step)

    def _end_hangs(self, most: float) -> None:
        # The others wait for a rank whose death is not acted upon yet, or for a host that is not there.
        if self._lost or self._wait_until is not None or self._changes.is_going_on(most):
            return
        if self._recovery is not None and self._is_filling:
            if self._recovery.idle() > most:
                self._restart(f"generation {self._ranks.generation} was not complete after "
                              f"{most:g} s", time.monotonic(), self._recovery.step)
            return
        if (rank := end_hang(self._ranks.living(), most)) is not None:
            self._restart_unless_vain(
                rank, f"all ranks have waited in collective calls for {most:g} s; expected the "
                "same calls on all ranks, and a network between them")

    # What workers say

    def _said_resumed(self, rank: Rank, message: dict[str, Any]) -> None:
        rank.is_open = self._ranks.has_checkpointer = True
        if self._recovery is not None and self._recovery.is_restart:
            self._recovery.reach("started")
            self._recovery.note_inexact(message.get("inexact") or [])
            if self._ranks.order_of(rank) == 0:
                self._recovery.resumed_at(message["step"], in_memory=message["in_memory"])

    def _said_committed(self, rank: Rank, message: dict[str, Any]) -> None:
        self._ranks.note_running(rank)
        done = self._recovery
        if done is not None and message["generation"] == self._ranks.generation \
                and (done.is_filled or done.is_restart):
            done.note_inexact(message.get("inexact") or [])
            done.reach("redone")
            self._finish(done)

    def _said_reached(self, _: Rank, message: dict[str, Any]) -> None:
        if self._recovery is not None:
            self._recovery.reach(message["phase"])

    def _said_at(self, rank: Rank, message: dict[str, Any]) -> None:
        if message["generation"] != self._ranks.generation or self._recovery is None:
            return
        rank.status = message
        if (statuses := self._ranks.statuses()) is None:
            return
        self._recovery.reach("agreed")
        decision = decide(statuses, self._target)
        if decision.refused:
            return self._restart(decision.refused, time.monotonic(), self._recovery.step)
        self._target = decision.target
        self._recovery.outcome = outcome_of(decision.courses)
        self._ranks.tell_decision(decision.target, decision.courses)

    def _said_met(self, rank: Rank, message: dict[str, Any]) -> None:
        if self._recovery is not None and message["generation"] == self._ranks.generation:
            self._recovery.reach("joined")

    def _said_joined(self, rank: Rank, message: dict[str, Any]) -> None:
        if message["generation"] != self._ranks.generation or self._recovery is None:
            return
        self._ranks.helpers.done()
        rank.has_joined = rank.is_whole = rank.is_open = True
        rank.forget_wait()
        self._recovery.note_filled(message)
        if all(other.has_joined for other in self._ranks.all):
            self._recovery.fill()

    def _said_restart(self, rank: Rank, message: dict[str, Any]) -> None:
        why = f"rank {rank.number}: {message['why']}"
        self._act_on_deaths()
        if self._code is not None or self._ranks.of(rank.number) is not rank:
            return  # the job ends, or all ranks have started again just now
        if self._recovery is not None and not self._recovery.is_restart:  # a death was counted
            return self._restart(why, time.monotonic(), rank.step)
        self._restart_unless_vain(rank, why)

    def _said_cut_off(self, rank: Rank, message: dict[str, Any]) -> None:
        rank.is_cut_off = message["generation"] == self._ranks.generation
        self._find_left()

    def _said_saved(self, rank: Rank, _: dict[str, Any]) -> None:
        self._ending.is_saved = True
        if self._is_filling:  # another rank died just then: nothing is left to do for a replacement
            self._end(STOPPED if self._ending.leaving is None else self._ending.code_of_leaving())

    def _said_closed(self, rank: Rank, _: dict[str, Any]) -> None:
        rank.plain, rank.is_open, rank.is_closed = "the Checkpointer was closed", False, True

    def _said_plain(self, rank: Rank, message: dict[str, Any]) -> None:
        rank.plain, rank.is_open, rank.is_closed = message["why"], message["is_open"], False
        self._ranks.has_checkpointer |= rank.is_open

    def _said_failed(self, rank: Rank, message: dict[str, Any]) -> None:
        rank.failed = message

    # Telling

    def _supersede(self) -> None:
        """Another rank was lost: the recovery before ends here."""
        if self._recovery is not None and self._recovery.is_filled:
            self._finish(self._recovery)

    def _finish(self, done: Recovery) -> None:
        say(done.text())
        self._ranks.emit("recovered", **done.event())
        self._recovery = None
