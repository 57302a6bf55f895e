"""What a worker does with the last words of a launcher that was killed."""

import os
import signal
import socket
import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from holdfast.errors import UnavailableError
from holdfast.launch.messages import send
from holdfast.launch.place import PAGE_BYTES, Place
from holdfast.torch.recover import meet
from holdfast.torch.recover.inner_group import SharedConnection, connect_to_store
from holdfast.torch.recover.link import Link


@pytest.fixture
def launcher(monkeypatch):
    """Makes links of a job of three ranks, with the other ends of their connections, and its store."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    stopped = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stopped.set())

    def make(slot, **place):
        mine, theirs = socket.socketpair()
        log = os.memfd_create("log")
        page = memoryview(bytearray(PAGE_BYTES)).cast("q")
        place = {"generation": 0, "is_replacement": False, **place}
        return Link(Place(slot, 0, [0, 1, 2], incarnation=0, hosts=[0, 0, 0], configuration="", can_change=False,
                          is_rebuilt=False, connection=theirs, log=log, page=page, **place),
                    lambda ranks: None, lambda: 0), mine

    yield make
    until = time.monotonic() + 20
    while not stopped.is_set() and time.monotonic() < until:
        time.sleep(0.01)
    signal.signal(signal.SIGTERM, before)


def test_a_decision_that_one_rank_has_heard_is_that_of_all(launcher):
    (first, to_first), (last, to_last) = launcher(0), launcher(2)
    new, to_new = launcher(1, generation=1, is_replacement=True)
    for connection in (to_first, to_last):
        send(connection, say="lost", generation=1, ranks=[1])
    # The launcher is killed before it has told the others; by what rank 2 says, all would make update 5.
    send(to_first, say="decided", generation=1, target=4, courses={0: "back", 2: "back"})
    for connection in (to_first, to_last, to_new):
        connection.close()
    assert last.hears_of_loss() and first.hears_of_loss()
    status = {"committed": 5, "ready": 5, "begun": False}
    decided = [link.agree(lambda: status) for link in (last, new, first)]
    assert [(one["target"], one["course"]) for one in decided] == [(4, "back"), (4, "fill"), (4, "back")]


def test_what_a_launcher_has_said_before_it_was_killed_is_heard(launcher):
    link, to_link = launcher(0)
    send(to_link, say="lost", generation=1, ranks=[1])
    to_link.close()
    link.say("cut_off", generation=0)  # finds the connection closed, perhaps before the loss is read
    assert link.hears_of_loss() and link.announced == 1


def test_a_decision_about_one_loss_is_not_taken_for_that_about_another(launcher):
    link, to_link = launcher(0)
    send(to_link, say="lost", generation=1, ranks=[1])
    send(to_link, say="decided", generation=1, target=4, courses={0: "forward", 2: "go on"})
    assert link.hears_of_loss() and link.agree(dict)["course"] == "forward"
    link.join(1)
    to_link.close()
    assert link.hears_of_loss()  # another rank does not answer, and there is no launcher to ask
    with pytest.raises(SystemExit):
        link.agree(dict)


def test_nobody_waits_for_a_rank_that_has_told_its_address_and_died(launcher, monkeypatch):
    link, to_link = launcher(0, generation=1)
    monkeypatch.setenv("HOLDFAST_LAUNCH_ID", "job")
    monkeypatch.setattr(meet, "shared", SharedConnection())
    store = dist.PrefixStore("holdfast/0.1", connect_to_store(timedelta(seconds=20)))
    for other in (1, 2):
        store.set(f"address/{other}", "127.0.0.1:9")
    send(to_link, say="lost", generation=2, ranks=[1])
    assert link.hears_of_loss()
    with pytest.raises(UnavailableError):
        meet.meet(link, 1)
    to_link.close()
