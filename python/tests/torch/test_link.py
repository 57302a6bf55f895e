"""What a worker does with the last words of a launcher that was killed."""

import contextlib
import os
import signal
import socket
import threading
from datetime import timedelta

import torch.distributed as dist
from ranks import run_ranks

from holdfast._native import TcpTransport
from holdfast.errors import Error, UnavailableError
from holdfast.launch.messages import send
from holdfast.launch.worker_identity import PAGE_BYTES, WorkerIdentity
from holdfast.torch.recover.connect_ranks import _token, connect_ranks
from holdfast.torch.recover.inner_group import connect_to_store
from holdfast.torch.recover.link import Link


class Launcher:
    """Makes links of a job of three ranks, with the other ends of their connections, and has its store.

    In a process of its own: a link without a launcher has its process stop, and at last ends it.
    """

    def __init__(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self._store.port), HOLDFAST_LAUNCH_ID="job")

    def link(self, slot, generation=0, is_replacement=False):
        mine, theirs = socket.socketpair()
        page = memoryview(bytearray(PAGE_BYTES)).cast("q")
        identity = WorkerIdentity(slot, 0, [0, 1, 2], generation, 0, is_replacement, [0, 0, 0], "", False, False,
                                  theirs, os.memfd_create("log"), page)
        return Link(identity, lambda ranks: None, lambda: 0), mine


def decide_with_half_a_decision(_rank, _world):
    launcher = Launcher()
    (first, to_first), (last, to_last) = launcher.link(0), launcher.link(2)
    new, to_new = launcher.link(1, generation=1, is_replacement=True)
    for connection in (to_first, to_last):
        send(connection, say="lost", generation=1, ranks=[1])
    # The launcher is killed before it has told the others; by what rank 2 says, all would make update 5.
    send(to_first, say="decided", generation=1, target=4, courses={0: "back", 2: "back"})
    for connection in (to_first, to_last, to_new):
        connection.close()
    assert last.hears_of_loss() and first.hears_of_loss()
    status = {"committed": 5, "ready": 5, "begun": False}
    decided = [link.agree(lambda: status) for link in (last, new, first)]
    return [(one["target"], one["course"]) for one in decided]


def test_a_decision_that_one_rank_has_heard_is_that_of_all():
    assert run_ranks(1, decide_with_half_a_decision, backend="") == [[(4, "back"), (4, "fill"), (4, "back")]]


def hear_the_last_words(_rank, _world):
    link, to_link = Launcher().link(0)
    send(to_link, say="lost", generation=1, ranks=[1])
    to_link.close()
    link.say("cut_off", generation=0)  # finds the connection closed, perhaps before the loss is read
    return link.hears_of_loss(), link.announced


def test_what_a_launcher_has_said_before_it_was_killed_is_heard():
    assert run_ranks(1, hear_the_last_words, backend="") == [(True, 1)]


def agree_twice(_rank, _world):
    link, to_link = Launcher().link(0)
    send(to_link, say="lost", generation=1, ranks=[1])
    send(to_link, say="decided", generation=1, target=4, courses={0: "forward", 2: "go on"})
    assert link.hears_of_loss()
    made = [link.agree(dict)["course"]]
    link.join(1)
    to_link.close()
    assert link.hears_of_loss()  # another rank does not answer, and there is no launcher to ask
    try:
        made.append(link.agree(dict)["course"])
    except SystemExit as error:
        made.append(f"ends with {error.code}")
    return made


def test_a_decision_about_one_loss_is_not_taken_for_that_about_another():
    assert run_ranks(1, agree_twice, backend="") == [["forward", "ends with 1"]]


def meet_a_lost_rank(_rank, _world):
    launcher = Launcher()
    link, to_link = launcher.link(0, generation=1)
    store = dist.PrefixStore("holdfast/0.1", connect_to_store(timedelta(seconds=20)))
    for other in (1, 2):
        store.set(f"address/{other}", "127.0.0.1:9")
    send(to_link, say="lost", generation=2, ranks=[1])
    assert link.hears_of_loss()
    try:
        connect_ranks(link, 1)
    except Exception as error:
        return str(error)


def test_nobody_waits_for_a_rank_that_has_told_its_address_and_died():
    assert run_ranks(1, meet_a_lost_rank, backend="") == ["a rank was lost while ranks connected to each other"]


def leave_a_generation_that_will_not_be_complete(_rank, _world):
    launcher = Launcher()
    link, to_link = launcher.link(1)
    link.announced = 1
    left = []

    def join():
        try:
            connect_ranks(link, 1)
        except UnavailableError as error:
            left.append(str(error))

    joining = threading.Thread(target=join)
    joining.start()
    store = dist.PrefixStore("holdfast/0.1", connect_to_store(timedelta(seconds=20)))
    first = TcpTransport(0, 3, token=_token(link, "1/address"), host="127.0.0.1")
    dead = TcpTransport(2, 3, token=_token(link, "1/address"), host="127.0.0.1")
    store.set("address/0", first.address)
    store.set("address/2", dead.address)
    addresses = [first.address, store.get("address/1").decode(), dead.address]
    dead.close()
    with contextlib.suppress(Error, TimeoutError):  # it is connected to rank 1, and not to rank 2
        first.connect(addresses, 1)
    send(to_link, say="lost", generation=2, ranks=[2])
    joining.join(10)
    with contextlib.suppress(Error, TimeoutError):
        while True:
            first.recv(1, 7, 5)
    try:
        first.recv(1, 7, 5)
    except (Error, TimeoutError) as error:
        return left, str(error)


def test_nobody_waits_for_a_rank_that_has_left_for_another_generation():
    ((left, why),) = run_ranks(1, leave_a_generation_that_will_not_be_complete, backend="")
    assert left == ["a rank was lost while ranks connected to each other"] and "rank 1 is gone" in why
