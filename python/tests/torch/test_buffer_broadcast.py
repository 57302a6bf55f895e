"""What DDP does with a flipped bit in the running statistics of one rank.

Before each forward pass DDP gives all ranks the buffers of rank 0. So a fault on another rank is
erased, and a fault on rank 0 reaches all ranks. docs/studies/corruption.md measures whether this
matters.
"""

import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def variances_after_a_step(rank, world, struck, broadcast):
    """The bits of the running variances of this rank, after a step in which all ranks have the same
    samples. Bit 30 of one of them was flipped on the struck rank."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3))
    ddp = DistributedDataParallel(model, **({} if broadcast else {"broadcast_buffers": False}))
    if rank == struck:
        model[1].running_var.view(torch.int32)[1] ^= 1 << 30
    ddp(torch.randn(4, 1, 8, 8)).sum().backward()
    return model[1].running_var.view(torch.int32).tolist()


@pytest.fixture(scope="module")
def clean():
    first, second = run_ranks(2, variances_after_a_step, None, True)
    assert first == second
    return first


def test_a_fault_on_another_rank_is_erased(clean):
    assert run_ranks(2, variances_after_a_step, 1, True) == [clean, clean]


def test_a_fault_on_rank_0_reaches_all_ranks(clean):
    first, second = run_ranks(2, variances_after_a_step, 0, True)
    assert first == second != clean
    assert first[0] == clean[0] and first[2] == clean[2]


def test_without_the_broadcast_a_fault_stays_where_it_is(clean):
    first, second = run_ranks(2, variances_after_a_step, 1, False)
    assert first == clean != second
