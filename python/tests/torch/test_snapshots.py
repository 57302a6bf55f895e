"""Every committed checkpoint holds exactly one step, whatever code writes to tensors at any time.

The model's tensors are a known function of the step, and saves are made in the background
after every step.
"""

import logging

from grouped import grouped
import pytest
import torch
from ranks import run_ranks
from torch import nn

import holdfast

BIG = 1 << 18  # elements: copying one takes longer than beginning to write to it


class Net(nn.Module):
    """A model with a few tensors, whose values can be set to anything."""

    def __init__(self, size, parameters=4):
        super().__init__()
        self.layers = nn.ParameterList(torch.zeros(size) for _ in range(parameters))
        self.embed = nn.Embedding(32, 8, max_norm=1.0)
        self.register_buffer("seen", torch.zeros(size))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, embedding=False):
        self.seen.fill_(-1)  # forward changes the buffer, so the save must copy it before
        self.count += 1
        total = self.layers[0].sum()
        return total + self.embed(torch.arange(32)).sum() if embedding else total


class Mark(torch.optim.Optimizer):
    """An optimizer that sets every tensor to its known value after the next step."""

    def __init__(self, net):
        super().__init__(net.parameters(), {})
        self.net = net
        self.done = 0

    @torch.no_grad()
    def step(self, closure=None):
        for k, parameter in enumerate(self.param_groups[0]["params"]):
            parameter.fill_(value_at(self.done, k))
            state = self.state[parameter]
            state.setdefault("moment", torch.empty_like(parameter)).fill_(
                value_at(self.done, 50 + k))
        self.net.seen.fill_(value_at(self.done, 99))
        self.net.count.fill_(self.done)
        self.done += 1


def value_at(step, k):
    return float(step * 100 + k + 2)


def steps_in(run):
    """Checks that each committed checkpoint holds only values of its step. Returns the steps."""
    steps = []
    for folder in sorted(run.glob("step-*")):
        contents = holdfast.open(folder)
        step = int(folder.name.removeprefix("step-"))
        steps.append(step)
        names = [f"layers.{k}" for k in range(len(contents))
                 if f"model.layers.{k}" in contents] + ["embed.weight"]
        wanted = {"model.seen": value_at(step, 99), "model.count": float(step)}
        for k, name in enumerate(names):
            wanted[f"model.{name}"] = value_at(step, k)
            wanted[f"optimizer.{name}.moment"] = value_at(step, 50 + k)
        assert sorted(wanted) == sorted(contents)
        for name, value in wanted.items():
            array = contents.read(name)
            assert array.min() == array.max() == value, (step, name)
    return steps


def train(run, net, disturb, steps=8, optimizer=None, **options):
    """Trains; `disturb` writes to tensors after each save began.
    Returns the tensors that were caught."""
    caught = []
    handler = logging.Handler()
    handler.emit = lambda record: caught.append(record.getMessage())
    logger = logging.getLogger("holdfast")
    logger.addHandler(handler)
    optimizer = optimizer or Mark(net)
    try:
        with holdfast.Checkpointer(run, model=net, optimizer=optimizer, every="1 steps",
                                   keep=None,
                                   **grouped(space_reserve=0, **options)) as checkpointer:
            assert checkpointer.resume() == 0
            for step in range(steps):
                net()
                optimizer.step()
                checkpointer.step(step)
                disturb(net)
    finally:
        logger.removeHandler(handler)
    return [line.split()[0] for line in caught if "written to between two updates" in line]


@pytest.mark.parametrize("guard", ["sample", "full", "off"])
@pytest.mark.parametrize("size", [5, BIG])
def test_every_checkpoint_is_of_one_step(tmp_path, size, guard):
    def forward(net):
        net().backward()

    assert train(tmp_path, Net(size), forward, guard=guard) == []
    assert steps_in(tmp_path) == list(range(8))


def renormalise(net):
    net(embedding=True).backward()


def clamp(net):
    with torch.no_grad():
        net.layers[2].clamp_(-1, 1)


def swap_average(net):
    with torch.no_grad():  # swaps an average in, as for an evaluation, and out again
        kept = [p.clone() for p in net.layers]
        for p in net.layers:
            p.fill_(-7)
        for p, value in zip(net.layers, kept, strict=True):
            p.copy_(value)


def write_data(net):
    net.layers[1].data.fill_(-3)


@pytest.mark.parametrize("disturb, name", [
    (renormalise, "model.embed.weight"), (clamp, "model.layers.2"),
    (swap_average, "model.layers.0"), (write_data, "model.layers.1"),
])
@pytest.mark.parametrize("size, guard", [(5, "sample"), (BIG, "sample"), (BIG, "full")])
def test_writes_between_updates_are_caught_and_what_is_committed_is_whole(
    tmp_path, disturb, name, size, guard
):
    caught = train(tmp_path, Net(size), disturb, guard=guard)
    assert caught == [name]  # only once: after that it is copied inside step()
    assert steps_in(tmp_path) == list(range(1, 8))


def test_a_single_element_is_enough_for_the_full_guard(tmp_path):
    def poke(net):
        net.layers[3].data[BIG - 1] = 0

    assert train(tmp_path, Net(BIG), poke, guard="full") == ["model.layers.3"]
    assert steps_in(tmp_path) == list(range(1, 8))


def test_memory_that_is_exchanged_is_found(tmp_path):
    def exchange(net):
        net.layers[1].data = torch.full_like(net.layers[1], -9)

    train(tmp_path, Net(BIG), exchange)
    assert set(steps_in(tmp_path)) >= {6, 7}


def test_an_optimizer_slot_that_is_written_to_is_caught(tmp_path):
    net = Net(BIG)

    def reset(_):
        with torch.no_grad():
            optimizer.state[net.embed.weight]["moment"].zero_()

    optimizer = Mark(net)
    assert train(tmp_path, net, reset, optimizer=optimizer) == ["optimizer.embed.weight.moment"]
    assert steps_in(tmp_path) == list(range(1, 8))


def write_rows(weight, rows, by):
    if by == "data":
        weight.data[rows] += 1
    else:
        weight.detach().numpy()[rows.numpy()] += 1


@pytest.mark.parametrize("by", ["data", "numpy"])
def test_rows_that_are_updated_by_hand_without_an_optimizer_are_of_one_step(tmp_path, by):
    """No hook tells of such an update, and the guard of a save sees too little of a large tensor."""
    model, states = nn.Embedding(BIG, 16), {}
    with holdfast.Checkpointer(tmp_path, model=model, every="1 steps", keep=None,
                               **grouped(space_reserve=0)) as checkpointer:
        checkpointer.resume()
        for step in range(8):
            write_rows(model.weight, torch.randint(BIG, (50,)), by)
            states[step] = model.weight.detach().clone()
            checkpointer.step(step)
    folders = sorted(tmp_path.glob("step-*"))
    assert len(folders) == 8
    for folder in folders:
        saved = torch.from_numpy(holdfast.open(folder).read("model.weight"))
        assert torch.equal(saved, states[int(folder.name.removeprefix("step-"))])


def disturb_on_one(rank, world, run, which):
    return train(run, Net(64), clamp if rank == which else lambda net: None)


def test_a_write_on_one_rank_makes_all_save_again(tmp_path):
    owners = 0
    for which in range(2):
        run = tmp_path / str(which)
        caught = run_ranks(2, disturb_on_one, str(run), which)
        # Only the rank whose replica is saved notices the write.
        torn = caught[which] == ["model.layers.2"]
        assert steps_in(run) == list(range(int(torn), 8))
        assert caught[1 - which] == []
        owners += torn
    assert owners == 1


class Follower(nn.Module):
    """A model with an encoder that follows another one in the forward, and one that never changes."""

    def __init__(self):
        super().__init__()
        self.query = nn.Parameter(torch.ones(BIG))
        self.key = nn.Parameter(torch.zeros(BIG), requires_grad=False)
        self.fixed = nn.Parameter(torch.zeros(BIG), requires_grad=False)

    def forward(self):
        with torch.no_grad():
            self.key.lerp_(self.query, 0.5)
        return (self.query * self.key).sum()


def test_an_encoder_that_follows_another_is_saved_at_each_step_without_a_word(tmp_path, caplog):
    net = Follower()
    optimizer = torch.optim.SGD([net.query], lr=1e-6)
    keys = []
    with holdfast.Checkpointer(tmp_path / "run", model=net, optimizer=optimizer, keep=None,
                               every="1 steps") as ck:
        ck.resume()
        net.fixed.data.fill_(3.0)
        nn.init.constant_(net.fixed, 4.0)  # weights that are loaded late are not copied at once for ever
        for step in range(4):
            net().backward()
            optimizer.step()
            optimizer.zero_grad()
            keys.append(net.key.detach().clone())
            ck.step(step)
        at_once = ck._state._capture._at_once
    assert at_once == {"model.key"} and not caplog.messages
    for step, key in enumerate(keys):
        assert torch.equal(torch.from_numpy(
            holdfast.open(f"{tmp_path}/run@{step}").read("model.key")), key)
