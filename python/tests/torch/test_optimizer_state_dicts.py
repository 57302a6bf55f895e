"""Values that an optimizer's own state_dict() adds are saved,
and loaded by the optimizer itself."""

import gc

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from training import Toy, clear

import holdfast
from holdfast.torch.state import optimizer_states, stateful_objects


class Lookahead(Optimizer):
    """Wraps another optimizer. Every third step goes half the way back to slow weights."""

    def __init__(self, inside):
        self.inside, self.count = inside, 0
        self.slow = [p.detach().clone() for g in inside.param_groups for p in g["params"]]

    state = property(lambda self: self.inside.state)
    param_groups = property(lambda self: self.inside.param_groups)

    def zero_grad(self):
        self.inside.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        self.inside.step()
        self.count += 1
        if self.count % 3 == 0:
            fast = [p for g in self.param_groups for p in g["params"]]
            for slow, p in zip(self.slow, fast, strict=True):
                slow.lerp_(p.to(slow.dtype), 0.5)
                p.copy_(slow)

    def state_dict(self):
        return {**self.inside.state_dict(), "slow": self.slow, "count": self.count}

    def load_state_dict(self, state):
        self.slow, self.count = state["slow"], state["count"]
        self.inside.load_state_dict({k: state[k] for k in ("state", "param_groups")})


def script(run, start, steps, dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Linear(4, 2).to(dtype)
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1000 steps",
                               writing=holdfast.Writing(space_reserve=0)) as checkpointer:
        assert checkpointer.resume() == start
        for step in range(start, steps):
            optimizer.zero_grad()
            model(torch.ones(3, 4, dtype=dtype) * step).square().sum().backward()
            optimizer.step()
            if step == 1:  # load_state_dict() would cast it to the dtype of its parameter
                optimizer.state[model.bias]["wide"] = torch.full((2,), 1 / 3)
        checkpointer.save(steps - 1)
    assert checkpointer.report.exact and not checkpointer.report.inexact
    return ([p.tolist() for p in model.parameters()], [t.tolist() for t in optimizer.slow],
            optimizer.count, optimizer.state[model.bias]["wide"].tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slow_weights_and_counters_come_back(tmp_path, dtype):
    wanted = script(tmp_path / "a", 0, 8, dtype)
    script(tmp_path / "b", 0, 4, dtype)
    assert script(tmp_path / "b", 4, 8, dtype) == wanted and wanted[2] == 8


class Counting(torch.optim.SGD):
    """An optimizer whose state_dict() adds a value that cannot be stored,
    or that it does not load."""

    added = 3

    def state_dict(self):
        return {**super().state_dict(), "added": self.added}


def test_what_is_added_and_not_loaded_is_refused_by_name(tmp_path):
    with pytest.raises(TypeError) as raised:
        Toy(kind=Counting).checkpointer(tmp_path)
    assert clear(raised, "optimizer: a Counting whose state_dict() adds added")


class Odd(Counting):
    added = object()

    def load_state_dict(self, state):
        super().load_state_dict(state)


def test_what_cannot_be_stored_is_refused_by_name(tmp_path):
    with pytest.raises(TypeError) as raised:
        Toy(kind=Odd).checkpointer(tmp_path)
    assert clear(raised, "optimizer.state_dict.added: a builtins.object")


class Late(Counting):
    """An older version of the optimizer, without its own state_dict(). Its runs can be resumed."""

    own = True

    def state_dict(self):
        return super().state_dict() if self.own else torch.optim.SGD.state_dict(self)

    def load_state_dict(self, state):
        self.added = state.get("added")
        super().load_state_dict(state)


def test_a_checkpoint_without_it_is_resumed_and_it_is_said(tmp_path):
    toy = Toy(kind=Late)
    toy.optimizer.own = False
    with toy.checkpointer(tmp_path) as checkpointer:
        toy.train(checkpointer, [0])
    with Toy(kind=Late).checkpointer(tmp_path) as checkpointer:
        assert checkpointer.resume() == 1
    assert checkpointer.report.inexact[0].startswith("optimizer.state_dict: the checkpoint has")


def test_several_in_a_list_are_kept_apart(tmp_path):
    for life in range(2):
        torch.manual_seed(life)
        models = nn.Linear(4, 2), nn.Linear(2, 2)
        optimizers = [Lookahead(torch.optim.SGD(m.parameters(), lr=0.1)) for m in models]
        with holdfast.Checkpointer(tmp_path, model=nn.Sequential(*models), optimizer=optimizers,
                                   every="1000 steps",
                                   writing=holdfast.Writing(space_reserve=0)) as checkpointer:
            checkpointer.resume()
            if life == 0:
                optimizers[0].count, optimizers[1].count = 5, 7
                checkpointer.save(0).durable()
    assert [one.count for one in optimizers] == [5, 7]


# Optimizers around others, with a state beside that of the inner one

class Ahead(Optimizer):
    """A Lookahead that keeps its slow weights in its own state, and shares the inner's groups."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.optimizer, self.param_groups = inner, inner.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        self.optimizer.step()
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for p in group["params"]:
                slow = self.state[p].setdefault("slow", p.detach().clone())
                if group["count"] % 3 == 0:
                    p.copy_(slow.lerp_(p, 0.5))


class AheadWithFastState(Ahead):
    """Its state_dict() has the inner optimizer's state as "state", as common Lookaheads have."""

    def state_dict(self):
        return {**self.optimizer.state_dict(), "slow_state": {"made": len(self.state)}}

    def load_state_dict(self, state):
        self.optimizer.load_state_dict({k: state[k] for k in ("state", "param_groups")})
        self.param_groups = self.optimizer.param_groups


def ahead(run, start, steps, kind=Ahead, given=lambda one: one):
    torch.manual_seed(start)
    model = nn.Linear(4, 2).bfloat16()
    optimizer = kind(torch.optim.AdamW(model.parameters(), lr=0.1))
    with holdfast.Checkpointer(run, model=model, optimizer=given(optimizer), every="1000 steps",
                               writing=holdfast.Writing(space_reserve=0)) as checkpointer:
        assert checkpointer.resume() == start
        for step in range(start, steps):
            optimizer.zero_grad()
            model(torch.full((3, 4), step + 1.0).bfloat16()).square().sum().backward()
            optimizer.step()
            if step == 1:  # load_state_dict() would cast it to the dtype of its parameter
                optimizer.optimizer.state[model.bias]["wide"] = torch.full((2,), 1 / 3)
        checkpointer.save(steps - 1)
    states = [optimizer.state, optimizer.optimizer.state]
    return checkpointer.report.inexact, [
        *(p.tolist() for p in model.parameters()), optimizer.param_groups[0]["count"],
        *({k: v.tolist() for k, v in state[p].items()} for state in states
          for p in model.parameters())]


@pytest.mark.parametrize("kind", [Ahead, AheadWithFastState])
def test_the_state_of_an_inner_optimizer_comes_back(tmp_path, kind):
    _, started = ahead(tmp_path / "b", 0, 4, kind)
    inexact, found = ahead(tmp_path / "b", 4, 8, kind)
    torch.manual_seed(0)
    assert found == ahead(tmp_path / "a", 0, 8, kind)[1] != started and not inexact
    names = [name for name in holdfast.load(tmp_path / "b") if name.endswith("weight.exp_avg")]
    assert names == ["optimizer.~inner.weight.exp_avg"]


def test_an_inner_optimizer_that_is_given_by_name_is_saved_once(tmp_path):
    ahead(tmp_path, 0, 4, given=lambda one: {"outer": one, "inner": one.optimizer})
    names = [name for name in holdfast.load(tmp_path) if name.endswith("weight.exp_avg")]
    assert names == ["optimizer.inner.weight.exp_avg"]


def test_a_checkpoint_without_the_inner_state_is_resumed_and_it_is_said(tmp_path, monkeypatch):
    with monkeypatch.context() as old:
        for module in (optimizer_states, stateful_objects):
            old.setattr(module, "with_own_states", list)
        ahead(tmp_path, 0, 4)
    inexact, _ = ahead(tmp_path, 4, 5)
    assert inexact == ["optimizer.~inner.weight, optimizer.~inner.bias: the state of an optimizer "
                       "inside another one, which an earlier version of Holdfast did not save, "
                       "begins anew"]


def test_checkpointers_that_are_gone_leave_nothing_on_the_optimizer(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    for number in range(3):
        checkpointer = holdfast.Checkpointer(tmp_path / str(number), model=model, optimizer=optimizer, every="never")
        checkpointer.resume()
        assert len(optimizer._optimizer_load_state_dict_post_hooks) == 1
        checkpointer.close()
        del checkpointer
        gc.collect()
    assert not optimizer._optimizer_load_state_dict_post_hooks
