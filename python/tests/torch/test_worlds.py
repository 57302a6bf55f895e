"""A run continues on another number of processes and with another cut of the model. It has the
saved tensors bit for bit, and no sample is lost or read twice."""

import collections
import functools

import pytest
import torch
import torch.nn.functional as F
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from training import digest

import holdfast
from holdfast.torch.values.dtypes import torch_dtype

SAMPLES, BATCH, EPOCHS = 36, 12, 3
STEPS = (4, 3, 2)  # of each start: the cut changes in the middle of an epoch, and at its end
WIDTH, INNER, MICRO = 8, 28, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Four blocks, or one pipeline stage of them. A stage keeps the names of the whole model."""

    def __init__(self, stage, stages):
        super().__init__()
        self.embed = nn.Embedding(SAMPLES, WIDTH)
        self.blocks = nn.ModuleDict({str(i): Block() for i in range(4)})
        self.head = nn.Linear(WIDTH, 3)
        for i in range(4):
            if i * stages // 4 != stage:
                del self.blocks[str(i)]
        if stage > 0:
            self.embed = None
        if stage < stages - 1:
            self.head = None

    def forward(self, x):
        x = x if self.embed is None else self.embed(x)
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(x)


def loss_of(scores, indices):
    return F.cross_entropy(scores, indices % 3)


def cut(model, mesh, kind):
    pp, dp, tp = mesh.shape
    if tp > 1:
        for block in model.blocks.values():
            parallelize_module(block, mesh["tp"],
                               {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if dp == 1:
        return model
    if kind == "ddp":
        return DistributedDataParallel(model, process_group=mesh.get_group("dp"))
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def make_schedule(model, mesh):
    stage, stages = mesh.get_local_rank("pp"), mesh.shape[0]
    size = BATCH // mesh.shape[1] // MICRO
    hidden = torch.zeros(size, WIDTH, requires_grad=True)
    made = PipelineStage(
        model, stage, stages, torch.device("cpu"), group=mesh.get_group("pp"),
        input_args=torch.zeros(size, dtype=torch.long) if stage == 0 else hidden,
        output_args=torch.zeros(size, 3) if stage == stages - 1 else hidden)
    return ScheduleGPipe(made, MICRO, loss_fn=loss_of)


def gathered(model, optimizer):
    """Digests of the whole tensors, by their names in the checkpoint."""
    found = {}
    for name, parameter in model.named_parameters():
        name = name.removeprefix("module.")
        found[f"model.{name}"] = parameter
        for slot, value in optimizer.state[parameter].items():
            found[f"optimizer.{name}.{slot}"] = value
    whole = {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in found.items()}
    return {name: digest(tensor.detach()) for name, tensor in whole.items()}


def live(rank, world, run, shape, kind, steps):
    """Trains. Returns first step, tensors and scheduler at the start and the end, and samples."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("pp", "dp", "tp"))
    torch.manual_seed(world)  # the initial weights differ from those that were saved
    model = cut(Net(mesh.get_local_rank("pp"), shape[0]), mesh, kind)
    schedule = make_schedule(model, mesh) if shape[0] > 1 else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)
    data = holdfast.data.loader(range(SAMPLES), BATCH, seed=5, epochs=EPOCHS, num_workers=0,
                                rank=mesh.get_local_rank("dp"), world=shape[1])
    seen = []
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, scheduler=scheduler,
                               data=data, every="1 steps", keep=1,
                               writing=holdfast.Writing(space_reserve=0)) as checkpointer:
        start = checkpointer.resume()
        before = gathered(model, optimizer), repr(scheduler.state_dict())
        for step, indices in zip(range(start, start + steps), data):
            train(model, schedule, indices)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            checkpointer.step(step)
            if mesh.get_local_rank("pp") == mesh.get_local_rank("tp") == 0:
                seen.append((step, indices.tolist()))
        after = gathered(model, optimizer), repr(scheduler.state_dict())
    return start, before, after, seen


def train(model, schedule, indices):
    if schedule is None:
        loss_of(model(indices), indices).backward()
    else:
        schedule.step(*([indices] if model.embed is not None else []), target=indices, losses=[])


def united(parts):
    """Merges what the ranks have, and checks that no two ranks contradict each other."""
    union = {}
    for tensors, _ in parts:
        for name, value in tensors.items():
            assert union.setdefault(name, value) == value, name
    assert len({words for _, words in parts}) == 1
    return union, parts[0][1]


def in_checkpoint(run):
    contents = holdfast.open(run)
    found = {}
    for name in contents:
        info = contents[name]
        tensor = torch.from_numpy(contents.read(name)).view(torch_dtype(info.dtype))
        found[name] = digest(tensor)
    return found


CHAINS = {
    "ddp": [("ddp", (1, 4, 1)), ("ddp", (1, 2, 1)), ("ddp", (1, 3, 1))],
    "fsdp": [("fsdp", (1, 4, 1)), ("fsdp", (1, 3, 1)), ("fsdp", (1, 1, 1))],
    "tp": [("fsdp", (1, 1, 2)), ("fsdp", (1, 1, 4)), ("fsdp", (1, 1, 1))],
    "pp": [("fsdp", (2, 1, 1)), ("fsdp", (1, 1, 1)), ("fsdp", (4, 1, 1))],
    "mesh": [("fsdp", (2, 2, 2)), ("fsdp", (1, 2, 1)), ("fsdp", (2, 1, 2))],
}


@pytest.mark.parametrize("chain", CHAINS)
def test_a_run_goes_on_in_another_world(tmp_path, chain):
    run = tmp_path / "run"
    wanted, seen, done = None, [], 0
    for (kind, shape), steps in zip(CHAINS[chain], STEPS, strict=True):
        world = functools.reduce(lambda a, b: a * b, shape)
        ranks = run_ranks(world, live, str(run), shape, kind, steps, timeout=90)
        assert {start for start, *_ in ranks} == {done}
        if wanted is not None:
            assert united([before for _, before, *_ in ranks]) == wanted
        wanted = united([after for _, _, after, _ in ranks])
        saved = in_checkpoint(run)
        assert {name: saved[name] for name in wanted[0]} == wanted[0]
        for *_, samples in ranks:
            seen += samples
        done += steps
    assert_each_sample_once_an_epoch(seen)


def assert_each_sample_once_an_epoch(seen):
    batches = SAMPLES // BATCH
    by_epoch = collections.defaultdict(list)
    for step, indices in seen:
        by_epoch[step // batches] += indices
    assert sorted(by_epoch) == list(range(EPOCHS))
    for indices in by_epoch.values():
        assert sorted(indices) == list(range(SAMPLES))


def draw_and_save(rank, world, run):
    model = nn.Linear(2, 1)
    with holdfast.Checkpointer(run, model=model, every="never") as ck:
        start = ck.resume()
        ck.save(start).durable()
        return ck.report.inexact


def test_generators_of_another_number_of_ranks_are_not_restored_and_a_sentence_says_so(tmp_path):
    assert run_ranks(2, draw_and_save, tmp_path) == [[], []]
    said = draw_and_save(0, 1, tmp_path)
    assert said == ["generators: 2 ranks saved theirs, and now there are 1: none is restored, so random "
                    "numbers differ"]
