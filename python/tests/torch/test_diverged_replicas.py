"""Tensors that are equal on all ranks at first and diverge later: no checkpoint mixes them.

The cause may be local SGD, an update that one rank missed, or a fault. Training continues in each
case. From then on each rank's own tensors are saved, and each rank gets its own back.
"""

import logging
import shutil
import time

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn

import holdfast


class Warned(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []
        logging.getLogger("holdfast").addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())

    def about_values(self):
        return [line for line in self.lines if "hold it with different values" in line]


def net(width, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))


def values(model, optimizer):
    """All tensors, by their names in a checkpoint."""
    named = {f"model.{name}": p.detach().clone().numpy() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        for slot, value in optimizer.state[p].items():
            named[f"optimizer.{name}.{slot}"] = value.clone().numpy()
    return named


def train(rank, world, run, width, steps, parts_after, seeds=None):
    """Trains first with the same data on all ranks, then with each rank's own data (local SGD)."""
    warned = Warned()
    model = net(width, 0 if seeds is None else seeds[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    states = {}
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1 steps",
                               keep=None, writing=holdfast.Writing(space_reserve=0),
                               failures=holdfast.Failures(signals=False)) as ck:
        start = ck.resume()
        resumed = values(model, optimizer) if start else None
        for step in range(start, steps):
            torch.manual_seed(step if step < parts_after else 1000 * rank + step)
            model(torch.randn(4, width)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            states[step] = values(model, optimizer)
            ck.step(step)
            time.sleep(0.02)  # stands for forward and backward, while the save goes on
        inexact = list(ck.report.inexact)
    return states, warned.about_values(), resumed, inexact


def newest(run):
    return holdfast.open(max(run.glob("step-*")))


def check(run, states):
    """Checks all saved values.
    Returns steps with shared tensors, and steps with each rank's own."""
    whole, own = [], []
    for folder in sorted(run.glob("step-*")):
        step = int(folder.name.removeprefix("step-"))
        contents = holdfast.open(folder)
        of_ranks = [ranks_states[step] for ranks_states in states]
        for name, value in of_ranks[0].items():
            if name in contents:
                for rank, named in enumerate(of_ranks):
                    assert (contents.read(name) == named[name]).all(), (step, name, rank)
                continue
            for rank, named in enumerate(of_ranks):
                saved = contents.read(f"{name}@rank{rank}")
                assert (saved == named[name]).all(), (step, name, rank)
        (own if any("@rank" in name for name in contents) else whole).append(step)
    return whole, own


@pytest.mark.parametrize("width", [8, 600])  # each save compares an eighth of the larger one
def test_replicas_that_part_are_saved_as_each_ranks_own(tmp_path, width):
    results = run_ranks(2, train, str(tmp_path), width, 16, 5)
    whole, own = check(tmp_path, [states for states, *_ in results])
    assert whole == [0, 1, 2, 3, 4]
    assert own[-1] == 15
    assert len(own) >= 8
    for _, warned, _, _ in results:
        assert len(warned) == 1
        assert "rank 0 and rank 1" in warned[0]


def test_each_rank_gets_its_own_back(tmp_path):
    first = run_ranks(2, train, str(tmp_path), 8, 8, 2)
    second = run_ranks(2, train, str(tmp_path), 8, 11, 2)
    for rank in range(2):
        _, _, resumed, inexact = second[rank]
        wanted = first[rank][0][7]
        assert resumed.keys() == wanted.keys()
        assert all((resumed[name] == wanted[name]).all() for name in wanted)
        assert not any("own" in line for line in inexact)
    whole, own = check(tmp_path, [{**a[0], **b[0]} for a, b in zip(first, second, strict=True)])
    # In the second process they are each rank's own from the first save on.
    assert own[-4:] == [7, 8, 9, 10]


@pytest.mark.parametrize("world", [1, 3])
def test_another_number_of_ranks_gets_them_in_turn_and_is_told(tmp_path, world):
    first = run_ranks(2, train, str(tmp_path), 8, 8, 2)
    for rank, (_, _, resumed, inexact) in enumerate(
            run_ranks(world, train, str(tmp_path), 8, 9, 2)):
        wanted = first[rank % 2][0][7]
        assert all((resumed[name] == wanted[name]).all() for name in wanted)
        assert any("each of 2 ranks saved its own" in line for line in inexact)


def test_tensors_that_differ_from_the_beginning_are_each_ranks_own_too(tmp_path):
    results = run_ranks(2, train, str(tmp_path), 8, 3, 0, [1, 2])
    assert check(tmp_path, [states for states, *_ in results]) == ([], [0, 1, 2])
    assert len(results[0][1]) >= 1


def part_at_the_end(rank, world, run, every, parts_after):
    """Trains 6 steps. Only the save of the last one can find that the replicas have parted."""
    warned, model = Warned(), net(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ck = holdfast.Checkpointer(run, model=model, optimizer=optimizer, every=every, keep=None,
                               writing=holdfast.Writing(space_reserve=0),
                               failures=holdfast.Failures(signals=False))
    ck.resume()
    for step in range(6):
        torch.manual_seed(step if step < parts_after else 1000 * rank + step)
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        ck.step(step)
    if every == "never":
        ck.save(5)
    ck.close()
    return {5: values(model, optimizer)}, warned.about_values()


@pytest.mark.parametrize(("every", "parts_after"),
                         [("1000 steps", 3), ("6 steps", 3), ("1 steps", 5), ("never", 2)])
def test_replicas_that_part_before_the_last_save_are_saved_by_close(tmp_path, every, parts_after):
    results = run_ranks(2, part_at_the_end, str(tmp_path), every, parts_after)
    newest_step = max(int(folder.name.removeprefix("step-")) for folder in tmp_path.glob("step-*"))
    assert newest_step == 5 and "model.0.weight@rank1" in newest(tmp_path)
    for folder in tmp_path.glob("step-0000000[0-4]"):
        shutil.rmtree(folder)
    assert check(tmp_path, [states for states, _ in results]) == ([], [5])
    assert all(len(warned) == 1 for _, warned in results)


def poke_one(rank, world, run):
    """Trains. From step 4 on, one element of one of many tensors differs on rank 1."""
    warned = Warned()
    model = nn.ParameterList(torch.zeros(1 << 17) for _ in range(24))  # 512 KiB each
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    parted = None
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1 steps",
                               keep=None, writing=holdfast.Writing(space_reserve=0),
                               failures=holdfast.Failures(signals=False)) as ck:
        assert ck.resume() == 0
        for step in range(16):
            if step == 4 and rank == 1:
                with torch.no_grad():
                    model[17][77_777] += 1
            for p in model:
                p.grad = torch.ones_like(p)
            optimizer.step()
            ck.step(step)
            dist.barrier()
            time.sleep(0.2)  # stands for forward and backward
            if parted is None and warned.about_values():
                parted = step
    return parted, warned.about_values()


def test_one_element_that_differs_is_found_within_8_saves(tmp_path):
    for parted, warned in run_ranks(2, poke_one, str(tmp_path)):
        assert parted is not None
        assert parted <= 4 + 8 + 2  # the save is made again at one of the next steps
        assert warned[0].startswith("model.17: rank 0 and rank 1 hold it")
    contents = newest(tmp_path)
    assert "model.17@rank0" in contents
    assert "model.16" in contents
    differ = contents.read("model.17@rank0") != contents.read("model.17@rank1")
    assert differ.sum() == 1


def sharded_and_replicated(rank, world, run):
    """Trains with HSDP's layout: two parts, each on two ranks.
    Rank 2's update in step 3 differs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    warned = Warned()
    mesh = init_device_mesh("cpu", (2, 2))
    local = torch.full((4, 3), float(mesh.get_coordinate()[1]))
    model = nn.ParameterList([nn.Parameter(
        DTensor.from_local(local, mesh, [Replicate(), Shard(0)], run_check=False))])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1 steps",
                               keep=None, writing=holdfast.Writing(space_reserve=0),
                               failures=holdfast.Failures(signals=False)) as ck:
        assert ck.resume() == 0
        for step in range(6):
            change = 2.0 if rank == 2 and step == 3 else 1.0
            model[0].grad = DTensor.from_local(torch.full((4, 3), change), mesh,
                                               [Replicate(), Shard(0)], run_check=False)
            optimizer.step()
            ck.step(step)
            time.sleep(0.05)
    return warned.about_values()


def test_parts_that_several_ranks_hold_are_those_of_the_first_ranks(tmp_path):
    for warned in run_ranks(4, sharded_and_replicated, str(tmp_path)):
        assert len(warned) == 1
    saved = newest(tmp_path).read("model.0")
    assert (saved[:4] == 0 - 6).all()
    assert (saved[4:] == 1 - 6).all()
