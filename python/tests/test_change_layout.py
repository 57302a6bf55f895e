"""Changes of the layout of a state, over real connections."""

import multiprocessing
import os
import secrets
import signal
import threading
import time

import numpy as np
import pytest

from holdfast import _native
from holdfast.errors import NotFoundError, UnavailableError

DTYPES = {"float64": "F64", "int64": "I64"}


def connected(size):
    token = secrets.token_bytes(32)
    transports = [_native.TcpTransport(rank, size, token=token, host="127.0.0.1")
                  for rank in range(size)]
    addresses = [transport.address for transport in transports]
    on_threads([lambda t=transport: t.connect(addresses, 30.0) for transport in transports])
    return transports


def on_threads(calls):
    """Makes all calls at once, and returns what each returned or raised."""
    results = [None] * len(calls)

    def make(index):
        try:
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=make, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def pieces_of(arrays):
    return _native.Pieces([
        _native.Piece(
            _native.Array(name, array.ctypes.data, DTYPES[array.dtype.name], array.shape,
                          array.strides, []),
            array.shape, _native.Box([(0, size) for size in array.shape]))
        for name, array in arrays.items()])


def fill(transport, pieces, is_whole, timeout):
    """Fills a rank that is not whole from those that are."""
    none = _native.Pieces([])
    held, wanted = (pieces, none) if is_whole else (none, pieces)
    return _native.change_layout(transport, held, wanted, timeout)


def fill_all(transports, states, whole, timeout=30.0):
    pieces = [pieces_of(state) for state in states]
    return on_threads([
        lambda r=r: fill(transports[r], pieces[r], whole[r], timeout)
        for r in range(len(transports))])


def test_a_replacement_gets_the_state_of_its_peers():
    right = {"w": np.random.default_rng(1).random((500, 700)), "steps": np.arange(3)}
    states = [right, {name: np.zeros_like(array) for name, array in right.items()}, right]
    filled = fill_all(connected(3), states, [True, False, True])
    for name, array in right.items():
        np.testing.assert_array_equal(states[1][name], array)
    total = sum(array.nbytes for array in right.values())
    assert [one.received for one in filled] == [0, total, 0]
    assert [one.moved for one in filled] == [total] * 3
    assert filled[0].sent + filled[2].sent == total
    assert min(filled[0].sent, filled[2].sent) > total / 3


def test_a_state_that_is_cut_in_two_becomes_one_that_is_cut_in_three():
    whole = np.random.default_rng(2).random((60, 7))
    cuts = [[0, 30, 60, 60], [0, 20, 40, 60]]
    held, wanted = ([whole[a:b].copy() for a, b in zip(cut, cut[1:])] for cut in cuts)
    for one in wanted:
        one[:] = 0

    def rows(array, first):
        return _native.Piece(
            _native.Array("w", array.ctypes.data, "F64", array.shape, array.strides, []),
            whole.shape, _native.Box([(first, first + len(array)), (0, 7)]))

    transports = connected(3)
    pieces = [[_native.Pieces([rows(one, first)] if len(one) else [])
               for one, first in zip(arrays, cut)] for arrays, cut in zip((held, wanted), cuts)]
    done = on_threads([
        lambda r=r: _native.change_layout(transports[r], pieces[0][r], pieces[1][r], 30.0,
                                          prove_all=True) for r in range(3)])
    np.testing.assert_array_equal(np.concatenate(wanted), whole)
    row = whole.strides[0]
    assert [(one.received, one.copied, one.seals) for one in done] == [
        (0, 20 * row, 1), (10 * row, 10 * row, 1), (20 * row, 0, 1)]


def test_what_nobody_has_is_not_found_on_all_ranks():
    states = [{"w": np.zeros(4)}, {"w": np.zeros(4), "v": np.zeros(2)}]
    for error in fill_all(connected(2), states, [True, False]):
        assert isinstance(error, NotFoundError)
        assert "v: box [0:2]" in str(error)


def test_another_model_is_refused_and_a_lost_rank_is_unavailable():
    states = [{"w": np.zeros(4)}, {"w": np.zeros(5)}]
    for error in fill_all(connected(2), states, [True, False]):
        assert isinstance(error, ValueError)
        assert "rank 0 has F64 [4], rank 1 has F64 [5]" in str(error)
    transports = connected(2)
    transports[1].close()
    with pytest.raises(UnavailableError):
        fill(transports[0], pieces_of(states[0]), True, 30.0)


def test_a_rank_that_does_not_come_is_a_timeout_and_ctrl_c_ends_the_wait():
    transports = connected(2)
    pieces = pieces_of({"w": np.zeros(4)})
    with pytest.raises(TimeoutError):
        fill(transports[0], pieces, True, 0.1)
    timer = threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fill(transports[0], pieces, True, 30.0)
    assert time.monotonic() - start < 10


def be_rank(rank, size, token, pipe, megabytes):
    """A rank in a process of its own. Rank 0 is to be filled."""
    transport = _native.TcpTransport(rank, size, token=token, host="127.0.0.1")
    pipe.send(transport.address)
    transport.connect(pipe.recv(), 30.0)
    state = {f"t{index}": np.full((1 << 17,), float(index * (rank > 0)))
             for index in range(megabytes)}
    pieces = pieces_of(state)
    pipe.send("ready")
    pipe.recv()
    try:
        filled = fill(transport, pieces, rank > 0, 60.0)
        right = all((array == float(name[1:])).all() for name, array in state.items())
        pipe.send((filled.received, filled.shared, right))
    except Exception as error:
        pipe.send(error)
    pipe.recv()


class Processes:
    """Ranks in processes of their own, up to the call."""

    def __init__(self, size, megabytes):
        context = multiprocessing.get_context("spawn")
        token = secrets.token_bytes(32)
        self.pipes, self.processes = [], []
        for rank in range(size):
            own, other = context.Pipe()
            self.pipes.append(own)
            self.processes.append(context.Process(
                target=be_rank, args=(rank, size, token, other, megabytes), daemon=True))
            self.processes[-1].start()
        addresses = [pipe.recv() for pipe in self.pipes]
        for pipe in self.pipes:
            pipe.send(addresses)
        for pipe in self.pipes:
            assert pipe.recv() == "ready"

    def go(self):
        for pipe in self.pipes:
            pipe.send("go")

    def end(self):
        for process in self.processes:
            process.kill()
            process.join()


def test_processes_of_one_machine_fill_through_shared_memory():
    ranks = Processes(3, 16)
    ranks.go()
    results = [pipe.recv() for pipe in ranks.pipes]
    ranks.end()
    assert results[0] == (16 << 20, 16 << 20, True)
    assert sum(shared for _, shared, _ in results[1:]) == 16 << 20


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_call_of_the_others(killed):
    ranks = Processes(3, 128)
    ranks.go()
    time.sleep(0.03)
    os.kill(ranks.processes[killed].pid, signal.SIGKILL)
    start = time.monotonic()
    for rank in {0, 1, 2} - {killed}:
        result = ranks.pipes[rank].recv()
        assert isinstance(result, UnavailableError) or result[-1]
    ranks.end()
    assert time.monotonic() - start < 10
