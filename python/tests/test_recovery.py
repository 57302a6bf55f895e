"""The bindings of the gate, its buddies, and the decision after a rank was lost."""

import contextlib
import os
import threading
import time

import pytest

from holdfast import _native
from holdfast.errors import UnavailableError
from holdfast.torch.recover.buddies import BuddyGate
from holdfast.torch.recover.open_gate import OpenGate


def connected(size):
    """The transports of all ranks of a job in this process."""
    token = os.urandom(32)
    ranks = [_native.TcpTransport(r, size, token=token, host="127.0.0.1") for r in range(size)]
    addresses = [rank.address for rank in ranks]
    on_all(ranks, lambda rank: rank.connect(addresses, 10))
    return ranks


def on_all(ranks, call):
    """What call(rank) returns or raises on each rank, each in a thread of its own."""
    outcomes = ["did not end"] * len(ranks)

    def run(i):
        try:
            outcomes[i] = call(ranks[i])
        except Exception as error:
            outcomes[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return outcomes


def test_survivors_go_on_with_a_replacement():
    transports = connected(2)
    gates = [_native.Gate(transport, hosts=[0, 1]) for transport in transports]
    assert on_all(gates, lambda g: g.pass_gate(1, b"in 1 of %d" % g.buddy, 10)) == [None, None]
    gates[0].refresh(1, b"after 1")

    transports[0].close()  # rank 0 is lost
    with pytest.raises(UnavailableError):
        gates[1].pass_gate(2, b"in 2", 10)
    gates[1].interrupt()
    assert (gates[1].committed, gates[1].ready) == (1, 1)
    assert gates[1].record_of_peer(1, timeout=10) == (b"after 1", True)
    decision = _native.decide([(1, gates[1].committed, gates[1].ready, True)])
    assert (decision.target, decision.courses, decision.refused) == (1, {1: "back"}, None)

    fresh = connected(2)
    transports[1].replace(fresh[1])
    assert transports[1].address == fresh[1].address
    gates[0] = _native.Gate(fresh[0], hosts=[0, 1])
    assert on_all(gates, lambda g: g.begin(1, 1, b"after 1", 10)) == [None, None]
    assert on_all(gates, lambda g: g.pass_gate(2, b"in 2", 10)) == [None, None]
    assert gates[0].record_of_peer(1) == (b"after 1", True)
    assert gates[0].record_of_peer(2) == (b"in 2", False)
    assert [gate.generation for gate in gates] == [1, 1]


@pytest.mark.parametrize("closed, why", [(0, "rank 0 is gone"), (1, "the transport is closed")])
def test_a_wait_without_a_timeout_ends_if_the_other_rank_or_the_transport_is_gone(closed, why):
    ranks = connected(2)
    said = []
    waiting = threading.Thread(target=lambda: said.append(on_all(ranks[1:], lambda rank: rank.recv(0, 7))),
                               daemon=True)
    waiting.start()
    time.sleep(0.3)
    ranks[closed].close()
    waiting.join(20)
    ((error,),) = said
    assert isinstance(error, UnavailableError) and why in str(error)


@pytest.mark.parametrize("kind", [BuddyGate, OpenGate])
def test_records_longer_than_half_of_what_a_connection_keeps_go_to_both_buddies(kind):
    ranks = connected(3)
    gates = [kind(rank, hosts=[0, 1, 2]) for rank in ranks]

    def train(gate):
        for update in range(1, 5):
            gate.pass_gate(update, bytes([update, gate.rank]) * (5 << 20))
            with contextlib.suppress(TimeoutError):
                gate.refresh(update, bytes([update, gate.rank]) * (5 << 20))

    def go_on(rank):  # as survivors do, who still have the record of the update from before
        gate = gates[rank]
        gate.begin(1, 4, bytes([4, rank]) * (5 << 20))  # 10 MB; the transport keeps 16 MiB
        gate.pass_gate(5, bytes([5, rank]) * (5 << 20))

    def keep_those_of(update):
        begin, wanted = time.monotonic(), [{peer: bytes([update, peer]) for peer in {0, 1, 2} - {rank}}
                                           for rank in range(3)]
        while [{one.peer: one.record[:2] for one in gate.records()} for gate in gates] != wanted:
            assert time.monotonic() < begin + 20  # an open gate does not wait for the last ones

    assert on_all(gates, train) == [None] * 3
    keep_those_of(4)
    for old, new in zip(ranks, connected(3), strict=True):
        old.replace(new)
    assert on_all(range(3), go_on) == [None] * 3
    keep_those_of(5)


@pytest.mark.parametrize("kind, first", [(BuddyGate, ("long", False)), (OpenGate, ("later", True))])
def test_a_record_is_not_of_the_end_if_a_later_one_found_no_room(kind, first):
    """Otherwise a replacement would take what is in it for all that the lost rank had."""
    gates = [kind(rank, hosts=[0, 1, 2]) for rank in connected(3)]
    records = {"gate": b"g", "early": b"e", "long": bytes(17 << 20), "later": b"l", "last": b"z"}

    def refresh(name):
        try:
            gates[0].refresh(1, records[name])
        except TimeoutError:
            return False
        return True

    def become(buddy, name, is_at_end):
        """Waits until the record of rank 0 is that one."""
        until, seen = time.monotonic() + 20, None
        while seen != (records[name], is_at_end) and time.monotonic() < until:
            seen = next(((one.record, one.is_at_end) for one in gates[buddy].records() if one.peer == 0), None)
        assert seen == (records[name], is_at_end), f"{name} {is_at_end}: {seen and (seen[0][:1], seen[1])}"

    assert on_all(gates, lambda gate: gate.pass_gate(1, records["gate"])) == [None] * 3
    assert refresh("early")
    for buddy in (1, 2):
        become(buddy, "early", True)
    assert refresh("long")
    refresh("later")  # the first buddy has received nothing in between
    become(1, *first)
    become(2, "later", True)
    until = time.monotonic() + 20
    while not refresh("last") and time.monotonic() < until:
        time.sleep(0.01)
    for buddy in (1, 2):
        become(buddy, "last", True)


def test_interrupt_ends_a_gate_that_waits():
    ranks = connected(2)
    gate = _native.Gate(ranks[0])
    took = []

    def interrupt():
        time.sleep(0.05)
        took.append(time.monotonic())
        gate.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(UnavailableError, match="interrupted"):
        gate.pass_gate(1, b"", 60)
    assert time.monotonic() - took[0] < 30  # of the 60 s that it would wait
    thread.join()


def test_what_cannot_be_is_refused():
    decision = _native.decide([(0, 5, 5, False), (2, 4, 4, True)])
    assert decision.refused.startswith("rank 2 is committed to update 4")
    assert _native.decide([(0, 5, 6, True)], floor=6).courses == {0: "forward"}
    with pytest.raises(ValueError, match="hosts: 3 numbers; expected one for each of 2"):
        _native.Gate(connected(2)[0], hosts=[0, 0, 1])
    ranks = connected(2)
    with pytest.raises(ValueError, match="expected the same rank and size"):
        ranks[0].replace(ranks[1])


def test_a_job_goes_on_with_a_new_process(tmp_path):
    transports = connected(2)
    options = {"every": "4 steps", "signals": False, "recover": True}

    def open_job(transport):
        return _native.Job(tmp_path, transport, options)

    jobs = on_all(transports, open_job)
    assert on_all(jobs, lambda job: job.due(0)) == [None, None]
    for transport in transports:
        transport.close()
    with pytest.raises(ValueError, match=r"expected drop_saves\(\)"):
        jobs[0].rejoin()
    jobs[0].drop_saves(10)

    fresh = connected(2)
    transports[0].replace(fresh[0])
    rejoined, new = on_all([jobs[0].rejoin, lambda: open_job(fresh[1])], lambda call: call())
    assert rejoined is None
    jobs[1] = new
    assert on_all(jobs, lambda job: [job.due(step) for step in range(1, 4)]) == [
        [None, None, ("save", "every 4 steps")]] * 2
    assert on_all(jobs, lambda job: job.any(job is new)) == [True, True]
    assert on_all(jobs, lambda job: job.close(10)) == [None, None]
