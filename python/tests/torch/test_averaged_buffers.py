"""Averages that read buffers before DDP broadcasts them: one rank's are saved, and a resume says so."""

import torch
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import holdfast

LARGE = 1 << 18  # elements: more than a save compares of tensors that it copies at once


class Net(nn.Module):
    def __init__(self, writes):
        super().__init__()
        self.layer, self.writes = nn.Linear(4, 4), writes
        self.register_buffer("table", torch.zeros(LARGE, dtype=torch.float64))

    def forward(self, x):
        if self.writes:
            self.table.mul_(0.99).add_(x.detach().mean())
        return self.layer(x) + self.table[:4].to(x)


def train(rank, world, run, steps, writes):
    """Returns the average's table when this process began, and at its end, and what was not exact."""
    torch.manual_seed(0)
    net = Net(writes)
    model, average = DistributedDataParallel(net), AveragedModel(net, use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, ema=average, every="3 steps",
                               writing=holdfast.Writing(space_reserve=0),
                               failures=holdfast.Failures(signals=False)) as ck:
        begins = ck.resume()
        first = average.module.table[:2].tolist()
        for step in range(begins, steps):
            average.update_parameters(net)  # the first time, the tables are still equal
            torch.manual_seed(100 * rank + step)
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            ck.step(step)
    return first, average.module.table[:2].tolist(), list(ck.report.inexact)


def test_a_resume_says_which_buffers_of_an_average_differed(tmp_path):
    first = run_ranks(2, train, str(tmp_path), 6, True)
    assert first[0][1] != first[1][1]
    second = run_ranks(2, train, str(tmp_path), 6, True)
    resumed = [begin for begin, *_ in second]
    assert resumed != [end for _, end, _ in first]  # else this should be exact, and is not told as such
    for _, _, inexact in second:
        (line,) = [line for line in inexact if "ema.module.table" in line]
        assert "had different values, and those of one of them are taken" in line


def test_a_resume_with_equal_buffers_of_an_average_is_exact(tmp_path):
    first = run_ranks(2, train, str(tmp_path), 6, False)
    second = run_ranks(2, train, str(tmp_path), 6, False)
    assert [begin for begin, *_ in second] == [end for _, end, _ in first]
    assert all(inexact == [] for *_, inexact in second)
