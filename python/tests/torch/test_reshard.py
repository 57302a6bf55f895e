"""A step that `holdfast reshard` has cut again resumes like the original."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from long_tests import LONG
from ranks import run_ranks
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import holdfast

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
RULES = {"embed.weight": "first vocabulary", "blocks.#.up.weight": "rows",
         "blocks.#.up.bias": "rows", "blocks.#.down.weight": "columns",
         "blocks.#.down.bias": "whole", "head.weight": "last whole", "head.bias": "last whole"}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(300, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def train(rank, world, tp, run, seed, save):
    """Resumes from the run, or trains three steps and saves them. Returns the state, and what the
    next step and the rank's own generator make of it."""
    torch.manual_seed(seed)
    model = Net()
    mesh = init_device_mesh("cpu", (world // tp, tp), mesh_dim_names=("dp", "tp"))
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    opt = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step():
        opt.zero_grad()
        loss = model(torch.arange(30)).square().sum()
        loss.backward()
        opt.step()
        return float(whole(loss.detach()))

    with holdfast.Checkpointer(run, model=model, optimizer=opt) as ck:
        assert (ck.resume() > 0) != save
        if save:
            for _ in range(3):
                step()
            torch.rand(rank + 1)
            ck.save(3)
        state = {name: whole(value.detach()).clone() for name, value in model.named_parameters()}
        state |= {f"{name}.{slot}": whole(value).clone() for name, parameter in
                  model.named_parameters() for slot, value in opt.state[parameter].items()}
        return state | {"generator": torch.rand(3), "loss": torch.tensor(step())}


def resume_all(rank, world, tp, runs):
    """Resumes from each run in turn. Returns the names of what differs from the first."""
    states = [train(rank, world, tp, run, seed, False) for seed, run in enumerate(runs)]
    return [name for state in states for name in states[0]
            if not torch.equal(state[name], states[0][name])]


def reshard(*words):
    done = subprocess.run([PROGRAM, "reshard", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_step_that_was_cut_again_resumes_like_the_original(tmp_path):
    run, rules = tmp_path / "run", tmp_path / "rules.json"
    rules.write_text(json.dumps({"holdfast": "rules", "version": 1, "name": "net",
                                 "rules": RULES}))
    run_ranks(4, train, 2, str(run), 1, True)
    said = reshard(run, tmp_path / "cut", "--to", "tp=4,pp=2", "--rules", rules)
    assert "(the bound)" in said and "76 seals equal" in said
    reshard(tmp_path / "cut", tmp_path / "back", "--to", "whole")
    runs = [str(tmp_path / name) for name in ("run", "cut", "back")]
    # The objects of each rank are there too: its generator goes on as in the original.
    assert run_ranks(4, resume_all, 2, runs) == [[]] * 4
    # With another number of ranks no generator is restored, and they have other seeds.
    assert run_ranks(2, resume_all, 1, runs[:2]) == [["generator"]] * 2


def load_dcp(rank, world, tp, folder):
    """Loads a folder of DCP into the model under FSDP2 and tensor parallelism."""
    model = Net()
    mesh = init_device_mesh("cpu", (world // tp, tp), mesh_dim_names=("dp", "tp"))
    for block in model.blocks:
        if tp > 1:
            parallelize_module(block, mesh["tp"],
                               {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if tp < world:
            fully_shard(block, mesh=mesh["dp"])
    if tp < world:
        fully_shard(model, mesh=mesh["dp"])
    state = get_model_state_dict(model)
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state)
    return {name: whole(value.detach()).clone() for name, value in model.named_parameters()}


@LONG
def test_torch_loads_the_folder_under_fsdp_and_tensor_parallelism(tmp_path):
    torch.manual_seed(5)
    tensors = {name: value.detach().clone() for name, value in Net().named_parameters()}
    save_file(tensors, tmp_path / "net.safetensors")
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"holdfast": "rules", "version": 1, "name": "net",
                                 "rules": RULES}))
    said = reshard(tmp_path / "net.safetensors", tmp_path / "cut", "--to", "tp=4,pp=2",
                   "--rules", rules, "--format", "dcp")
    assert "dcp  8 files" in said
    assert len(list((tmp_path / "cut").glob("*.distcp"))) == 8
    # The format of the source is that of the target.
    reshard(tmp_path / "cut", tmp_path / "again", "--to", "tp=2", "--rules", rules)
    assert len(list((tmp_path / "again").glob("*.distcp"))) == 2
    for folder in ("cut", "again"):
        for world, tp in ((4, 2), (2, 1), (2, 2)):
            for state in run_ranks(world, load_dcp, tp, str(tmp_path / folder)):
                assert state.keys() == tensors.keys()
                assert all(torch.equal(state[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("form", ["native", "dcp"])
def test_a_killed_call_is_continued(tmp_path, form):
    """SIGKILL while files are written: the target is not there, and the same command keeps what is
    finished."""
    source, target = tmp_path / "net.safetensors", tmp_path / "cut"
    tensors = {"embed.weight": torch.randn(999, 512)}
    for i in range(8):
        tensors |= {f"blocks.{i}.up.weight": torch.randn(2048, 512),
                    f"blocks.{i}.down.weight": torch.randn(512, 2048)}
    save_file(tensors, source)
    rules = tmp_path / "rules.json"
    words = {"embed.weight": "first vocabulary", "blocks.#.up.weight": "rows",
             "blocks.#.down.weight": "columns"}
    rules.write_text(json.dumps({"holdfast": "rules", "version": 1, "name": "net", "rules": words}))
    command = [PROGRAM, "reshard", source, target, "--to", "tp=4,pp=4", "--rules", rules,
               "--format", form]
    process = subprocess.Popen(command)
    files = tmp_path / ".cut.reshard" / "files"
    finished = "*.index.json" if form == "native" else "*.distcp"
    while process.poll() is None and not list(files.glob(finished)):
        time.sleep(0.001)
    process.kill()
    killed = process.wait() == -signal.SIGKILL
    assert killed != target.exists()
    if killed:
        assert "were finished by an earlier call" in reshard(*command[2:])
    assert {path.name for path in tmp_path.iterdir()} == {"net.safetensors", "rules.json", "cut"}
    for name, value in holdfast.load(target).items():
        assert torch.equal(value, tensors[name])
