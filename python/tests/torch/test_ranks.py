"""ranks.py itself: results come in order, and failures are shown."""

import os

import pytest
import torch
import torch.distributed as dist
from ranks import RankError, run_ranks


def total(rank, world, more):
    value = torch.tensor(float(rank), requires_grad=True)
    (value * more).backward()  # a backward pass works in a rank
    summed = value.detach() + value.grad
    dist.all_reduce(summed)
    return rank, world, float(summed)


def fail_on_one(rank, world):
    if rank == 1:
        raise KeyError("the very key")
    dist.barrier()


def die_on_one(rank, world):
    if rank == 0:
        os._exit(9)


def test_results_come_in_the_order_of_ranks():
    # A backward pass in this process must not break the ranks.
    torch.ones(1, requires_grad=True).sum().backward()
    assert run_ranks(3, total, 2.0) == [(r, 3, 9.0) for r in range(3)]


def test_a_failure_shows_its_traceback():
    with pytest.raises(RankError, match="(?s)rank 1: Traceback.*fail_on_one.*the very key"):
        run_ranks(2, fail_on_one)


def test_a_silent_end_shows_its_exit_code():
    with pytest.raises(RankError, match="rank 0: no answer, exit code 9"):
        run_ranks(2, die_on_one)
