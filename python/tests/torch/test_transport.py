"""The transport between the ranks of a torch.distributed job, in real processes."""

import multiprocessing
import os
import signal
import threading

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from holdfast import UnavailableError  # noqa: E402
from holdfast.torch.loop import transport as under_test  # noqa: E402


def _enter(rank, size, store, body, pipe):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    try:
        pipe.send(("done", body(rank, size)))
    except Exception as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
    os._exit(0)  # a job with a dead rank cannot end in an orderly way


def run(size, body, folder):
    """Runs body(rank, size) in `size` processes.
    Returns the results, with None for one that died."""
    fork = multiprocessing.get_context("fork")
    jobs = []
    for rank in range(size):
        ours, theirs = fork.Pipe()
        arguments = (rank, size, folder / "store", body, theirs)
        jobs.append((fork.Process(target=_enter, args=arguments), ours))
        jobs[-1][0].start()
        theirs.close()
    outcomes = []
    for process, pipe in jobs:
        try:
            outcomes.append(pipe.recv() if pipe.poll(60) else ("failed", "no answer"))
        except EOFError:
            outcomes.append(None)
        process.kill()
        process.join()
    return outcomes


def done(outcomes):
    assert all(outcome and outcome[0] == "done" for outcome in outcomes), outcomes
    return [outcome[1] for outcome in outcomes]


def _talk(rank, size):
    transport = under_test.connect()
    transport.send((rank + 1) % size, 5, b"from %d" % rank)
    heard = transport.recv((rank - 1) % size, 5, 60)
    all_ranks = transport.all_gather(str(rank).encode(), 60)
    transport.barrier(60)
    with pytest.raises(TimeoutError):
        transport.recv(rank, 6, 0)
    with pytest.raises(ValueError):
        transport.send(size, 0, b"")
    return transport.rank, transport.size, heard, all_ranks


def _one_dies(rank, size):
    transport = under_test.connect()
    if rank == 1:
        child = os.fork()  # like a worker of a loader that outlives its parent
        if child == 0:
            threading.Event().wait()
        transport.send(0, 0, str(child).encode())
        transport.recv(0, 0)
        os.kill(os.getpid(), signal.SIGKILL)
    worker = 0
    if rank == 0:
        worker = int(transport.recv(1, 0))
        transport.send(1, 0, b"heard")
    try:
        transport.barrier()  # has no deadline: it ends because the transport notices the death
    except UnavailableError:
        return True
    finally:
        if worker:
            os.kill(worker, signal.SIGKILL)


def _one_cannot_listen(rank, size):
    under_test.connect(host="192.0.2.1" if rank == 1 else None)


def _pairs(rank, size):
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    transport = under_test.connect(groups[rank // 2])
    return transport.rank, transport.all_gather(str(rank).encode(), 60)


def test_ranks_hear_each_other(tmp_path):
    outcomes = done(run(3, _talk, tmp_path))
    assert outcomes == [(rank, 3, b"from %d" % ((rank - 1) % 3), [b"0", b"1", b"2"])
                        for rank in range(3)]


def test_a_killed_rank_is_seen_at_once_though_its_worker_lives_on(tmp_path):
    outcomes = run(3, _one_dies, tmp_path)
    assert outcomes == [("done", True), None, ("done", True)]


def test_a_rank_that_cannot_listen_fails_on_all(tmp_path):
    for outcome, text in run(2, _one_cannot_listen, tmp_path):
        assert outcome == "failed"
        assert "rank 1 cannot listen" in text and "192.0.2.1" in text


def _one_is_late(rank, size):
    """The last rank comes only after the first has warned that it waits."""
    under_test._LATE = 0.01
    said = threading.Event()
    under_test._log.warning = lambda text, *args: (said.set(), print(text % args))
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
        under_test.connect()
        return True

    def tell_when_said():
        said.wait(60)
        dist.send(torch.zeros(1), 1)

    threading.Thread(target=tell_when_said).start()
    under_test.connect()
    return said.is_set()


def test_who_waits_for_a_rank_says_so(tmp_path):
    assert all(done(run(2, _one_is_late, tmp_path)))


def test_a_group_has_a_transport_of_its_own(tmp_path):
    outcomes = done(run(4, _pairs, tmp_path))
    assert outcomes == [(0, [b"0", b"1"]), (1, [b"0", b"1"]),
                        (0, [b"2", b"3"]), (1, [b"2", b"3"])]


def test_a_job_of_one_rank_needs_none(tmp_path):
    assert under_test.connect() is None
    assert done(run(1, lambda rank, size: under_test.connect(), tmp_path)) == [None]


def test_a_machine_is_reached_by_the_address_that_leads_to_the_master():
    assert under_test._way_to("127.0.0.1") == ""
    assert under_test._way_to("no such host") == ""
    assert under_test._host("name", together=True) == "name"
    assert under_test._host(None, together=True) == "127.0.0.1"
