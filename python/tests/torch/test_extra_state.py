"""What modules keep in addition to parameters and buffers: get_extra_state()."""

import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import Toy, clear

import holdfast
from holdfast.torch.state.extra_state import ExtraState


class Counting(nn.Linear):
    """A module whose output depends on how often it was called,
    and on a tensor in its extra state."""

    def __init__(self, start=0):
        super().__init__(4, 2)
        self.calls, self.seen = start, torch.zeros(2)

    def forward(self, x):
        self.calls += 1
        y = super().forward(x) * (1 + self.calls / 10)
        self.seen = self.seen + y.detach().mean(0)
        return y + self.seen

    def get_extra_state(self):
        return {"calls": self.calls, "seen": self.seen}

    def set_extra_state(self, state):
        self.calls, self.seen = state["calls"], state["seen"]


def script(run, steps, wrap=lambda model: model, start=0, differs=False):
    """Trains, and resumes first if the run has steps. Returns all that the training results in."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), Counting(start))
    model = wrap(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1 steps",
                               writing=holdfast.Writing(space_reserve=0)) as checkpointer:
        first = checkpointer.resume()
        assert checkpointer.report.exact
        named = any("model.1._extra_state" in line for line in checkpointer.report.inexact)
        assert named == differs
        for step in range(first, steps):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            checkpointer.step(step)
    return [net[1].calls, *(t.clone() for t in (net[1].seen, *net.state_dict().values())
                            if isinstance(t, torch.Tensor))]


def same(one, other):
    return one[0] == other[0] and all(map(torch.equal, one[1:], other[1:]))


def test_it_comes_back_with_its_tensor(tmp_path):
    wanted = script(tmp_path / "a", 6)
    script(tmp_path / "b", 3)
    got = script(tmp_path / "b", 6)
    assert got[0] == 6 and same(got, wanted)


class Compiled(nn.Module):
    """A wrapper like that of torch.compile: the names contain the wrapper's attribute."""

    def __init__(self, module):
        super().__init__()
        self._orig_mod = module

    def forward(self, x):
        return self._orig_mod(x)


def test_a_wrapper_does_not_change_its_name(tmp_path):
    wanted = script(tmp_path / "a", 6)
    script(tmp_path / "b", 3, Compiled)
    assert same(script(tmp_path / "b", 6), wanted)
    assert "model.1._extra_state.seen" in holdfast.open(tmp_path / "b")


def on_ranks(rank, world, folder):
    """Every rank begins to count from another number, and continues from its own after a resume."""
    wanted = script(f"{folder}/a", 6, DistributedDataParallel, 100 * rank)
    script(f"{folder}/b", 3, DistributedDataParallel, 100 * rank)
    got = script(f"{folder}/b", 6, DistributedDataParallel)
    return got[0], same(got, wanted)


def test_every_rank_gets_its_own_and_a_new_one_that_of_another(tmp_path):
    assert run_ranks(2, on_ranks, str(tmp_path)) == [(6, True), (106, True)]
    assert script(tmp_path / "b", 7, differs=True)[0] == 7
    assert run_ranks(2, alone_then_two, str(tmp_path)) == [8, 8]


def alone_then_two(rank, world, folder):
    return script(f"{folder}/b", 8, DistributedDataParallel)[0]


def stages(rank, world, folder):
    """Trains one pipeline stage on each rank,
    whose names begin at 0, then resumes and trains on."""
    for steps in (2, 4):
        toy = Toy(nn.Sequential(Counting(10 * rank)))
        layer = toy.model[0]
        with toy.checkpointer(f"{folder}/run", names={"0": f"{rank}"}
                              ) as checkpointer:
            first = checkpointer.resume()
            for step in range(first, steps):
                layer.calls += 1
                layer.seen = layer.seen + rank + 1
                toy.step()
                checkpointer.step(step)
    return layer.calls, layer.seen.tolist()


def test_stages_keep_theirs_apart_and_one_rank_takes_up_all(tmp_path):
    assert run_ranks(2, stages, str(tmp_path)) == [(4, [4.0, 4.0]), (14, [8.0, 8.0])]
    toy = Toy(nn.Sequential(Counting(), Counting()))
    with toy.checkpointer(tmp_path / "run") as checkpointer:
        assert checkpointer.resume() == 4
    assert [layer.calls for layer in toy.model] == [4, 14]
    assert [layer.seen.tolist() for layer in toy.model] == [[4.0, 4.0], [8.0, 8.0]]


def test_one_that_is_missing_or_too_many_is_reported(tmp_path):
    plain, counting = nn.Sequential(nn.Linear(4, 2)), nn.Sequential(Counting())
    for first, second, words in [(plain, counting, "not in it"), (counting, plain, "not expected")]:
        run = tmp_path / words
        with Toy(first).checkpointer(run) as checkpointer:
            checkpointer.save(0)
        with Toy(second).checkpointer(run) as checkpointer:
            with pytest.raises(ValueError) as raised:
                checkpointer.resume()
        assert clear(raised, words, "model.0._extra_state")
        with Toy(second).checkpointer(run, strict=False) as checkpointer:
            assert checkpointer.resume() == 1


def test_what_cannot_be_stored_or_put_back_is_named(tmp_path):
    odd = Counting()
    odd.calls = object()
    with Toy(nn.Sequential(odd)).checkpointer(tmp_path) as checkpointer:
        with pytest.raises(TypeError, match=r"model.0._extra_state.calls: a builtins.object"):
            checkpointer.save(0)

    class Half(nn.Linear):
        def get_extra_state(self):
            return 1

    with pytest.raises(TypeError, match="model.0._extra_state: a Half with get_extra_state"):
        Toy(nn.Sequential(Half(4, 2))).checkpointer(tmp_path)
    with pytest.raises(ValueError, match="model.0._extra_state: two modules have this name"):
        ExtraState([nn.Sequential(Counting()) for _ in range(2)], None)
