"""Buffers that a step has changed are put back, or it is said that they cannot be."""

import torch
from torch import nn

from holdfast.torch.recover.buffers_before_step import BuffersBeforeStep

LARGE = 1 << 19  # elements: 2 MiB


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("small", torch.zeros(3))
        self.register_buffer("table", torch.randn(LARGE))


def make_steps(net, number, write=lambda net: None):
    """Copies of the buffers, after so many steps; the begun one has written to them."""
    copies = BuffersBeforeStep([net])
    for _ in range(number):
        copies.keep()
        net.small += 1
        copies.look()
    copies.keep()
    net.small += 1
    write(net)
    return copies


def test_buffers_are_as_they_were_at_the_begin_of_a_step():
    net = Net()
    before = net.table.clone()
    assert make_steps(net, 1, lambda net: net.table.zero_()).restore() == ""
    assert torch.equal(net.table, before) and net.small.tolist() == [1, 1, 1]


def test_a_write_to_a_table_that_was_not_copied_is_told():
    for write in (lambda net: net.table.zero_(), lambda net: net.table.data.mul_(0.9)):
        why = make_steps(Net(), 8, write).restore()
        assert why == "the step had written to the buffer table, of which there was no copy"
    assert make_steps(Net(), 8).restore() == ""


def test_a_table_is_copied_again_once_it_was_written_to():
    net = Net()
    copies = make_steps(net, 8, lambda net: net.table.data.mul_(0.9))
    copies.look()
    copies.keep()
    before = net.table.clone()
    net.table.data.mul_(0.9)
    assert copies.restore() == "" and torch.equal(net.table, before)
