"""holdfast.Watch where ranks hold different pieces: what several ranks hold is compared by them."""

import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from watched_net import LONG, STEPS, Lines, make

import holdfast


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(12)
        self.up = nn.Linear(12, 24)
        self.down = nn.Linear(24, 12)

    def forward(self, x):
        return self.down(self.up(self.norm(x)).relu())


class Zero:
    """Parameters are on all ranks; each rank updates some of them, and has the slots of those."""

    def __init__(self, rank, world):
        self.model = Block()
        self.owners = {p: k % world for k, p in enumerate(self.model.parameters())}
        mine = [p for p, owner in self.owners.items() if owner == rank]
        self.optimizer = torch.optim.AdamW(mine, lr=1e-2)

    def update(self):
        for p in self.owners:
            dist.all_reduce(p.grad)
        self.optimizer.step()
        self.model.zero_grad()
        with torch.no_grad():
            for p, owner in self.owners.items():
                dist.broadcast(p, owner)


class Plain:
    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


class Hsdp(Plain):
    """Shards over two ranks, and each shard twice."""

    def __init__(self, rank, world):
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
        self.model = fully_shard(Block(), mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)


class TensorParallel(Plain):
    """The linear layers are cut, and the norm is on all ranks."""

    def __init__(self, rank, world):
        mesh = init_device_mesh("cpu", (world,))
        self.model = parallelize_module(Block(), mesh,
                                        {"up": ColwiseParallel(), "down": RowwiseParallel()})
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, foreach=False)


KINDS = {one.__name__: one for one in (Zero, Hsdp, TensorParallel)}
RESTING, UPDATED = "after backward", "after update"


def train(rank, world, run, kind, steps, when=None, at=-1, who=-1, tensor="", flips=1, watch=None):
    """Trains; on one rank, bits of a tensor flip in one step, at the given time."""
    lines = Lines()
    job = KINDS[kind](rank, world)
    ck = make(run, job.model, job.optimizer, watch=watch or {})

    def strike(now, step):
        if (now, step, rank) == (when, at, who):
            piece = next(one for one in ck.pieces() if one.name == tensor)
            # Through .data, so that torch counts no write.
            piece.tensor.data.view(-1).view(torch.int32)[:flips] ^= 1 << 12

    error = None
    try:
        for step in range(steps):
            torch.manual_seed(step * 10 + (0 if kind == "TensorParallel" else rank))
            job.model(torch.randn(4, 12)).square().mean().backward()
            strike(RESTING, step)
            job.update()
            strike(UPDATED, step)
            ck.step(step)
    except holdfast.CorruptError as raised:
        error = str(raised)
    ck.close(save=False)
    return {"alarms": [(a.rank, a.tensor, a.mended) for a in ck.watched.alarms], "error": error,
            "cycle": ck.watched.cycle, "bytes": ck.watched.bytes, "lines": lines.lines}


def test_zero_compares_the_parameters_that_all_ranks_hold(tmp_path):
    """Rank 0 sends the parameter to all ranks after each update, and so erases the flip."""
    done = run_ranks(3, train, tmp_path / "run", "Zero", 20, UPDATED, 6, 2, "model.norm.weight")
    for one in done:
        assert one["error"] is None
        assert one["alarms"] == [(2, "model.norm.weight", "itself")]


def test_zero_mends_a_parameter_from_its_replicas(tmp_path):
    done = run_ranks(3, train, tmp_path / "run", "Zero", 20, RESTING, 6, 2, "model.norm.weight", 9)
    for one in done:
        assert one["error"] is None
        assert [alarm[:2] for alarm in one["alarms"]] == [(2, "model.norm.weight")]


def test_zero_mends_a_slot_that_one_rank_holds_by_its_seal(tmp_path):
    slot = "optimizer.up.weight.exp_avg"  # the third parameter, so that rank 2 has its slots
    done = run_ranks(3, train, tmp_path / "run", "Zero", 20, RESTING, 6, 2, slot)
    for one in done:
        assert one["error"] is None
        assert one["alarms"] == [(2, slot, "seal")]


def test_a_slot_that_one_rank_holds_stops_all_if_its_seal_cannot_mend_it(tmp_path):
    slot = "optimizer.up.weight.exp_avg"
    done = run_ranks(3, train, tmp_path / "run", "Zero", 20, RESTING, 6, 2, slot, 9)
    assert done[0]["error"] == done[1]["error"] == done[2]["error"]
    assert f"rank 2: {slot}" in done[0]["error"]


def test_hsdp_compares_the_two_copies_of_each_shard(tmp_path):
    done = run_ranks(4, train, tmp_path / "run", "Hsdp", 20, UPDATED, 6, 3, "model.up.weight")
    assert {one["error"] for one in done} == {done[0]["error"]}
    assert "rank 3: model.up.weight" in done[0]["error"]
    assert "rank 1 and rank 3 hold different values" in done[0]["error"]


def test_hsdp_mends_a_shard_from_its_copy(tmp_path):
    done = run_ranks(4, train, tmp_path / "run", "Hsdp", 20, RESTING, 6, 3, "model.up.weight", 40)
    for one in done:
        assert one["error"] is None
        assert one["alarms"] == [(3, "model.up.weight", "replicas")]


def test_tensor_parallel_ranks_compare_their_norms(tmp_path):
    done = run_ranks(3, train, tmp_path / "run", "TensorParallel", 20, UPDATED, 6, 1,
                     "model.norm.bias")
    for one in done:
        assert one["error"] is None
        assert set(one["alarms"]) == {(1, "model.norm.bias", "replicas")}


def test_ranks_that_compare_nothing_know_their_own_parts(tmp_path):
    """Parts of different ranks may have the same numbers, and are not compared."""
    done = run_ranks(3, train, tmp_path / "run", "Zero", 20, RESTING, 6, 2, "model.up.weight", 9,
                     {"replicas": False})
    assert done[0]["error"] == done[1]["error"] == done[2]["error"]
    assert "rank 2: model.up.weight" in done[0]["error"]


def test_no_alarm_without_faults(tmp_path):
    kinds = [("Hsdp", 4), ("Zero", 3), ("TensorParallel", 2)]
    for kind, world in kinds if LONG else kinds[:1]:
        for one in run_ranks(world, train, tmp_path / kind, kind, min(STEPS, 1000), timeout=300):
            assert one["alarms"] == [] and one["error"] is None and one["lines"] == []
            assert one["cycle"] == 1
