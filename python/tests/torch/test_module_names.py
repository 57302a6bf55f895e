"""The names of tensors do not depend on wrappers around the model."""

import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DataParallel, DistributedDataParallel

from holdfast.torch.state.module_names import entries_of, find_wrappers, rename


class Tied(nn.Module):
    """An embedding shared with the head, a submodule called module, and a hidden buffer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.module = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("hidden", torch.zeros(3), persistent=False)


PLAIN = ["hidden", "embed.weight", "module.weight", "module.bias", "norm.weight", "norm.bias",
         "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]


def names(module):
    return [entry.name for entry in entries_of(module)]


def wrapped_in_ddp(rank, world):
    model = Tied()
    model.norm = checkpoint_wrapper(model.norm)
    inner = torch.compile(DistributedDataParallel(model))
    found = find_wrappers(nn.ModuleDict({"net": inner}))
    entry = next(e for e in entries_of(inner) if e.name == "norm.running_mean")
    inside = dict(model.named_buffers())[entry.ddp_name]  # the name that DDP itself uses
    return names(inner), list(found), inside is entry.live


def test_wrappers_are_left_out_and_user_modules_are_not():
    assert names(Tied()) == PLAIN
    assert names(DataParallel(Tied())) == PLAIN
    assert names(torch.compile(Tied())) == PLAIN
    assert names(nn.Sequential(Tied()))[1] == "0.embed.weight"


def test_ddp_inside_compile_around_checkpointing_is_left_out():
    assert run_ranks(1, wrapped_in_ddp) == [(PLAIN, ["net"], True)]


def test_tied_weights_have_one_name_and_aliases():
    entry = next(e for e in entries_of(Tied()) if e.name == "embed.weight")
    assert entry.aliases == ["head.weight"]
    assert not any(e.aliases for e in entries_of(Tied()) if e.name != "embed.weight")


def test_prefixes_are_renamed_by_whole_words_and_longest_first():
    renaming = {"0": "layers.4", "0.norm": "last"}
    assert rename("0.weight", renaming) == "layers.4.weight"
    assert rename("0.norm.bias", renaming) == "last.bias"
    assert rename("01.weight", renaming) == "01.weight"
    assert rename("w", {"": "stage1"}) == "stage1.w"
    assert rename("w", str.upper) == "W"


def test_the_first_fsdp_is_refused():
    class FullyShardedDataParallel(nn.Module):
        pass

    with pytest.raises(TypeError, match="0: a FullyShardedDataParallel; expected fully_shard"):
        entries_of(nn.Sequential(FullyShardedDataParallel()))
