"""What the launcher decides: its Coordinator alone, without processes."""

import signal
import socket
import time
from types import SimpleNamespace

import pytest

from holdfast.launch.coordinator import Coordinator
from holdfast.launch.hosts import Host, Hosts
from holdfast.launch.loop import Awake
from holdfast.launch.messages import Courier, Reader
from holdfast.launch.options import Options
from holdfast.launch.processes import Workers
from holdfast.launch.worker_identity import PAGE_LOOKED, PAGE_WAITS_SINCE


class Job:
    """A job of one rank on each of some hosts. `done` has the commands, with their hosts."""

    def __init__(self, hosts=2, **options):
        self.coordinator = Coordinator(Options(1, ["train.py"], hosts=hosts, **options), 1)
        self.done = []
        self.hosts = Hosts(hosts, "", None, None, self.coordinator)
        for number in range(hosts):
            self.hosts.living[number] = Host(number, 1, lambda command, on=number: self.done.append(
                {"host": on, **command}), heard=time.monotonic())
        self.coordinator.begin(self.hosts)

    def started(self):
        """The serial number of the newest process of each rank."""
        return {one["rank"]: one["serial"] for one in self.done if one["do"] == "start"}

    def commands(self, kind):
        return [one for one in self.done if one["do"] == kind]

    def says(self, rank, kind, **told):
        self._report(rank, "message", message={"say": kind, **told})

    def dies(self, *ranks, code=-signal.SIGKILL, step=5, settles=True):
        for rank in ranks:
            self._report(rank, "ended", code=code, why="", step=step, ago=0.0)
        if settles:
            self.coordinator.settle()

    def all_commit(self):
        for rank in range(self.hosts.number):
            self.says(rank, "committed", generation=self.coordinator._ranks.generation)

    def hangs(self, step, waits=3.0):
        """All ranks have waited in collective calls of a step for some seconds."""
        for rank, serial in self.started().items():
            self.hosts.living[rank].hear({"say": "alive", "waits": {str(rank): [serial, waits]},
                                          "steps": {str(rank): step}})
        self.coordinator.tick()
        self.coordinator.settle()

    def waits(self, rank, seconds):
        """A rank reports how long it has waited in a collective call; None: it is in none."""
        self.hosts.living[rank].hear({"say": "alive", "steps": {str(rank): 5}, "waits": {
            str(rank): [self.started()[rank], seconds]}})

    def _report(self, rank, kind, **told):
        self.report_of(rank, rank, self.started()[rank], kind, **told)

    def report_of(self, host, worker, serial, kind, **told):
        """A worker that may be no rank reports."""
        self.coordinator.report(self.hosts.living[host], {"say": kind, "rank": worker, "serial": serial, **told})


def test_only_a_second_ctrl_c_of_the_same_host_ends_the_job():
    job = Job()
    job.coordinator.signal(signal.SIGINT)
    job.coordinator.report(job.hosts.living[1], {"say": "signal", "number": signal.SIGINT})
    assert job.coordinator.outcome() is None and not job.commands("close")
    assert {one["number"] for one in job.commands("signal")} == {signal.SIGTERM}
    job.coordinator.report(job.hosts.living[1], {"say": "signal", "number": signal.SIGINT})
    assert job.coordinator.outcome() == 130 and job.commands("close")


def test_a_hang_after_a_restart_is_found_and_ends_the_job_if_the_step_hangs_each_time():
    job = Job(hang=2.0)
    for times in range(1, 4):
        job.all_commit()
        job.hangs(step=3)
        assert job.coordinator.outcome() is None and len(job.commands("start")) == 2 + 2 * times
    job.hangs(step=3)
    assert job.coordinator.outcome() == 1 and len(job.commands("start")) == 8


def test_a_rank_that_is_ended_for_its_absence_is_replaced_and_the_others_keep_their_processes():
    job = Job(hang=2.0)
    job.all_commit()
    job.waits(0, 3.0)
    job.waits(1, None)
    job.coordinator.tick()
    assert [one["rank"] for one in job.commands("kill")] == [1]
    job.dies(1, settles=False)  # the launcher looks for hangs before it acts upon the death
    job.coordinator.tick()
    job.coordinator.settle()
    assert job.started() == {0: 1, 1: 3} and not job.commands("close")
    for rank in range(2):
        job.says(rank, "joined", generation=1)
    job.coordinator.tick()  # the wait that rank 0 has reported was ended by the death
    assert len(job.commands("kill")) == 1 and job.started() == {0: 1, 1: 3}


def test_a_wait_of_the_processes_before_a_restart_does_not_count():
    job = Job(hang=2.0)
    old = job.started()[1]
    job.hangs(step=3)
    job.hosts.living[1].hear({"say": "alive", "waits": {"1": [old, 3.0]}, "steps": {"1": 3}})
    job.coordinator.tick()
    assert not job.commands("kill") and len(job.commands("start")) == 4


def test_a_death_that_leads_to_a_restart_counts_once():
    job = Job()
    for times in range(1, 4):
        job.all_commit()
        job.dies(1)
        job.says(0, "restart", why="rank 1 died; it was in a validation")
        assert job.coordinator.outcome() is None
        assert job.started() == {0: 3 * times + 1, 1: 3 * times + 2}
    job.all_commit()
    job.dies(1)  # the fourth time
    assert job.coordinator._ending.leaving is not None


@pytest.mark.parametrize("code", [-signal.SIGKILL, 1])
def test_all_ranks_start_again_once_if_a_death_and_the_wish_for_that_come_together(capsys, code):
    job = Job()
    job.all_commit()
    job.dies(1, code=code, settles=False)
    job.says(0, "restart", why="it was in a validation")
    job.coordinator.settle()
    said = capsys.readouterr().err
    assert said.count("all ranks start again") == 1 and "rank 0: it was in a validation" in said, said
    assert job.coordinator.outcome() is None and len(job.commands("close")) == 2


def test_a_restart_after_a_recovery_that_failed_is_timed_from_the_death(clock, capsys):
    job = Job()
    job.all_commit()
    job.dies(1)
    clock.now += 10.0
    job.says(1, "restart", why="nobody has this tensor")
    for rank in range(2):
        job.says(rank, "resumed", step=0, in_memory=False)
    job.all_commit()
    assert "step 0 goes on after 10.0 s: checkpoint, exact" in capsys.readouterr().err


def test_a_recovery_names_what_is_not_exact(capsys):
    job = Job()
    job.all_commit()
    job.dies(1)
    job.says(0, "joined", generation=1)
    job.says(1, "joined", generation=1, inexact=[f"mean.{k}: changes" for k in range(6)])
    job.all_commit()
    assert ("replica, not exact: mean.0: changes; mean.1: changes; mean.2: changes; mean.3: changes, and 2 "
            "more, 0 steps lost") in capsys.readouterr().err


def test_restarts_that_ranks_ask_for_without_a_death_are_counted():
    job = Job()
    job.says(0, "restart", why="nobody has this tensor")
    assert job.coordinator.outcome() is None
    job.says(0, "restart", why="nobody has this tensor")
    assert job.coordinator.outcome() == 1  # the start was lost twice


@pytest.fixture
def stopping():
    """A job of two ranks that is asked to stop while a replacement of rank 1 starts."""
    job = Job()
    job.all_commit()
    job.dies(1)
    job.coordinator.signal(signal.SIGTERM)
    return job


def test_a_stop_signal_is_not_for_replacements_and_one_that_dies_is_replaced(stopping):
    assert {tuple(one["serials"]) for one in stopping.commands("signal")} == {(1,)}
    stopping.dies(1, code=-signal.SIGTERM)
    assert stopping.started() == {0: 1, 1: 4}
    for rank in range(2):
        stopping.says(rank, "joined", generation=2)
    for rank in range(2):
        stopping.dies(rank, code=143)
    assert stopping.coordinator.outcome() == 143 and len(stopping.commands("start")) == 4


def test_a_restart_of_a_job_that_is_asked_to_stop_ends_it_instead(stopping):
    stopping.says(0, "restart", why="nobody has this tensor")
    assert stopping.coordinator.outcome() == 1  # 143 would say that the steps are saved
    assert len(stopping.commands("start")) == 3


def test_a_job_that_is_asked_to_stop_does_not_wait_for_a_host_that_is_lost(stopping, capsys):
    host = stopping.hosts.living.pop(1)
    stopping.coordinator.host_lost(host, "its launcher has ended")
    stopping.coordinator.settle()
    stopping.coordinator.tick()
    assert stopping.commands("start")[-1]["rank"] == 1 and stopping.commands("start")[-1]["host"] == 0
    assert stopping.coordinator.outcome() is None
    assert "host 1: not there: processes on the other hosts take the places" in capsys.readouterr().err


def test_a_process_is_awake_since_its_first_tick_after_it_was_stopped():
    awake = Awake()
    for now, since in ((50.0, 50.0), (50.2, 50.0), (51.0, 50.0), (60.0, 60.0), (60.2, 60.0)):
        awake.tick(now)
        assert awake.since == since


def test_a_spare_that_comes_when_a_rank_has_ended_does_not_hold_up_the_end():
    job = Job()
    job.all_commit()
    for rank in range(2):
        job.says(rank, "closed")
    job.dies(0, code=0)
    job.coordinator.host_came(Host(None, 1, lambda _: None))
    job.dies(1, code=0)
    assert job.coordinator.outcome() == 0


def test_no_message_is_lost_or_comes_twice_when_a_connection_is_made_again():
    ours, theirs, heard = Courier(), Courier(), []
    for _ in range(3):
        a, b = socket.socketpair()
        with a, b:
            a.setblocking(False)
            ours.attach(a, theirs.got)
            for _ in range(2):
                ours.put({"say": ours._number})
            ours.beat({"say": "beat"})
            heard += theirs.take(Reader(b).read())
            ours.put({"say": ours._number})  # nobody reads it before the connection is cut
        ours.detach()
        ours.put({"say": ours._number})
    assert [one["say"] for one in heard if one["say"] != "beat"] == list(range(10))
    assert [number for number, _ in ours._kept] == list(range(7, 13))  # what the other side had at the last cut is forgotten


@pytest.fixture
def clock(monkeypatch):
    """The monotonic clock; the test sets its seconds."""
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


def test_a_host_that_was_silent_while_this_one_was_stopped_has_time_to_show_that_it_lives(clock):
    lost = []
    job = SimpleNamespace(host_lost=lambda host, why: lost.append(host.number))
    hosts = Hosts(2, "", None, SimpleNamespace(close=lambda _: None), job)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        hosts.living[1] = Host(1, 1, lambda _: None, heard=100.0, connection=ours, courier=Courier())
        hosts.tick()
        clock.now = 200.0
        for _ in range(13):
            hosts.tick()
            clock.now += 0.2
        assert not lost
        clock.now += 0.2
        hosts.tick()
        assert lost == [1]


def test_time_in_which_the_job_was_stopped_is_no_wait_in_a_collective_call(clock):
    reports = []
    workers = Workers(["train.py"], False, None, reports.append)
    workers._pages[0] = [0] * 8
    workers._processes[0] = SimpleNamespace(rank=0, serial=1)
    workers._pages[0][PAGE_WAITS_SINCE] = workers._pages[0][PAGE_LOOKED] = 99 * 10**9
    workers.tick()
    clock.now = 1000.0
    workers.tick()
    workers._pages[0][PAGE_LOOKED] = 1000 * 10**9
    clock.now = 1000.5
    workers.tick()
    assert reports[-1]["waits"] == {"0": [1, 0.5]}


@pytest.mark.parametrize("is_lost", [False, True])
def test_ranks_that_stop_for_a_change_that_was_given_up_go_on_as_they_were(is_lost):
    """A worker that waits for its place dies when the ranks stop for it, or a rank dies before they have."""
    job = Job(most=3)
    job.all_commit()
    job.says(0, "change", what="configured", text="dp=2", sizes={})

    def ask():
        job.says(0, "change", what="wanted", id="7", to="dp=3", workers=3, avoid=[], avoid_hosts=[],
                 is_only_planned=False)

    ask()
    host, spare = (job.commands("start")[-1][name] for name in ("host", "serial"))
    job.report_of(host, 2, spare, "message", message={"say": "change", "what": "waits"})
    job.says(0, "change", what="appointed", generation=0)
    if is_lost:
        job.dies(1)
        for rank in range(2):
            job.says(rank, "joined", generation=1)
        job.says(1, "change", what="appointed", generation=0)  # was on its way
        ask()
        job.says(0, "change", what="appointed", generation=1)  # rank 1 has not stopped yet
    else:
        job.report_of(host, 2, spare, "ended", code=-signal.SIGKILL, why="", step=-1, ago=0.0)
        job.says(1, "change", what="appointed", generation=0)
    told = [one["message"] for one in job.commands("tell")]
    assert [one["why"] for one in told if one["say"] == "cannot_change"] == [
        "a rank was lost" if is_lost else "worker 2 has ended: signal 9"]
    assert [(one["to"], one["members"], one["participants"]) for one in told if one["say"] == "change"] == (
        [] if is_lost else 2 * [("dp=2", [0, 1], [0, 1])])
