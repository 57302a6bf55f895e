"""Checkpointer.values: plain values that are saved with the training."""

import math

import pytest
import torch
import torch.distributed as dist
from grouped import grouped
from ranks import run_ranks
from torch import nn

import holdfast


def make(run, **options):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    return holdfast.Checkpointer(run, model=model, every="never",
                                 optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                                 **grouped(space_reserve=0, **options))


def test_values_come_back_and_new_ones_keep_their_defaults(tmp_path):
    with make(tmp_path / "run") as ck:
        ck.values["best"] = math.inf
        assert ck.resume() == 0 and ck.values == {"best": math.inf}
        ck.values |= {"best": 0.25, "epoch": 3, "names": ["a", ("b", None)]}
        ck.save(7)
        ck.values["epoch"] = 4
        ck.values["later"] = True
        assert ck.resume() == 8  # rolls back
        assert ck.values == {"best": 0.25, "epoch": 3, "names": ["a", ("b", None)]}
    with make(tmp_path / "run") as ck:
        ck.values = {"best": math.inf, "patience": 5}
        assert ck.resume() == 8
        assert ck.values == {"best": 0.25, "epoch": 3, "names": ["a", ("b", None)], "patience": 5}


def test_what_is_no_plain_value_is_refused_by_name(tmp_path):
    with make(tmp_path / "run") as ck:
        ck.resume()
        ck.values["logger"] = object()
        with pytest.raises(TypeError, match=r"values.*logger.*object"):
            ck.save(1)


def test_an_object_of_that_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"objects: the name 'values' belongs"):
        make(tmp_path / "run", objects={"values": torch.optim.SGD([torch.ones(1)], lr=1)})


def ranks_with_values_of_their_own(rank, world, run):
    with make(run) as ck:
        ck.resume()
        ck.values["mine"] = rank
        ck.save(1)
    with make(run) as ck:
        ck.resume()
        assert ck.values == {"mine": rank}
    dist.barrier()


def test_each_rank_gets_its_own_values(tmp_path):
    run_ranks(2, ranks_with_values_of_their_own, tmp_path / "run")
