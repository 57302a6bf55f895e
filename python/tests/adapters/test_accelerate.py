"""accelerate's stateful loader as the `data` of a Checkpointer."""

import itertools
import os

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from noisy_samples import Samples
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import holdfast
from holdfast.torch.data.accelerate_loader import AccelerateLoader

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


def prepared(kind):
    config = DataLoaderConfiguration(use_stateful_dataloader=True,
                                     use_seedable_sampler=kind == "seeded")
    own = torch.Generator().manual_seed(torch.initial_seed()) if kind == "own generator" else None
    made = StatefulDataLoader if kind == "torchdata" else DataLoader
    plain = made(Samples(kind == "noise"), 2, shuffle=kind != "in order", generator=own,
                 num_workers=int(kind == "workers"))
    return Accelerator(cpu=True, dataloader_config=config).prepare(plain)


def run(folder, kind, seed, steps, first=None):
    """Trains up to that step, 10 steps in an epoch. Returns losses, weights and the report."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    if torch.distributed.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader, losses = prepared(kind), []
    with holdfast.Checkpointer(folder, model=model, optimizer=optimizer, data=loader,
                               every="1 steps", keep=2,
                               writing=holdfast.Writing(space_reserve=0)) as checkpointer:
        step = checkpointer.resume()
        if first is not None:
            first()
        while step < steps:
            for batch in itertools.islice(loader, steps - step):
                loss = model(batch).pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
                checkpointer.step(step)
                step += 1
    return losses, [parameter.tolist() for parameter in model.parameters()], checkpointer.report


@pytest.mark.parametrize("kind", ["shuffled", "seeded", "own generator", "in order", "torchdata"])
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(tmp_path, kind):
    wanted, weights, _ = run(tmp_path / "whole", kind, 0, 24)
    for stops in ([3], [9], [10], [4, 7], [13, 20], [22]):
        seen = []
        for seed, stop in enumerate([*stops, 24]):
            losses, last, report = run(tmp_path / str(stops), kind, seed, stop)
            assert not report.inexact
            seen += losses
        assert seen == wanted and last == weights, stops


def test_its_order_is_drawn_again_even_behind_an_update(tmp_path):
    wanted, *_ = run(tmp_path / "whole", "shuffled", 0, 14)
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    before, *_ = run(tmp_path / "run", "shuffled", 0, 4)
    after, *_ = run(tmp_path / "run", "shuffled", 1, 14, first=other.step)
    assert before + after == wanted


def stop_and_go_on(rank, world, folder):
    os.environ.update(LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    whole, *_ = run(f"{folder}/whole", "shuffled", 0, 12)
    seen = []
    for seed, stop in enumerate([3, 5, 7, 12]):  # on 2 ranks an epoch has 5 batches
        losses, _, report = run(f"{folder}/run", "shuffled", seed, stop)
        assert not report.inexact
        seen += losses
    return whole, seen == whole


def test_two_ranks_go_on_with_the_same_bits(tmp_path):
    (one, is_same), (two, is_same_too) = run_ranks(2, stop_and_go_on, str(tmp_path), timeout=200)
    assert is_same and is_same_too and one != two


def test_a_position_without_an_order_is_taken_and_named_in_the_report(tmp_path):
    loader = prepared("shuffled")
    batches = iter(loader)
    next(batches)
    bare = loader.state_dict()
    again = AccelerateLoader(prepared("shuffled"))
    again.load_state_dict(bare)
    assert any("may read other samples" in line for line in again.inexact(None))


def test_what_is_not_drawn_again_is_named_in_the_report(tmp_path):
    for kind, words in (("noise", "reads one batch ahead"), ("workers", "that order cannot be repeated")):
        for seed, stop in enumerate([4, 10]):
            *_, report = run(tmp_path / kind, kind, seed, stop)
        assert any(words in line for line in report.inexact), kind


def test_from_an_epochs_end_it_goes_on_even_where_samples_draw(tmp_path):
    wanted, *_ = run(tmp_path / "whole", "noise", 0, 14)
    first, *_ = run(tmp_path / "run", "noise", 0, 10)
    then, _, report = run(tmp_path / "run", "noise", 1, 14)
    assert first + then == wanted and not report.inexact


def test_a_loader_without_a_position_is_refused_with_a_way_out(tmp_path):
    model = nn.Linear(4, 1)
    plain = Accelerator(cpu=True).prepare(DataLoader(Samples(False), 2))
    with pytest.raises(TypeError, match="expected DataLoaderConfiguration"):
        holdfast.Checkpointer(tmp_path / "run", model=model, data=plain,
                              optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
