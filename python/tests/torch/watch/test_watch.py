"""holdfast.Watch: bits that flip between two updates are seen and mended; nothing else is."""

import math
import random

import pytest
import torch
from long_tests import LONG
from torch import nn
from watched_net import STEPS, Net, backward, events, make, same, train, values

import holdfast
from holdfast.torch.loop.saves import Saves
from holdfast.torch.watch.costs import Costs, Plan
from holdfast.torch.watch.freeze_watch import FreezeWatch
from holdfast.torch.watch.window_order import WindowOrder
from holdfast.torch.watch.windows import Windows


def golden(steps):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()
    return values(model, optimizer)


# A flip is seen, named and mended

def test_a_flip_anywhere_is_seen_named_and_mended(tmp_path, warned):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    plans = []

    def strike(step):
        if step < 4:
            return
        plan = holdfast.flip_plan(ck, roles=["parameter", "slot", "counter"], seed=step)
        holdfast.inject(ck, plan)
        plans.append(plan["flips"][0])

    with make(tmp_path / "run", model, optimizer) as ck:
        train(ck, model, optimizer, 0, 65, strike)
        alarms = ck.watched.alarms
    # BatchNorm's counter is a buffer, which the forward pass writes to.
    plans = [plan for plan in plans if "num_batches" not in plan["tensor"]]
    assert [(a.tensor, list(a.index)) for a in alarms] == [(p["tensor"], p["index"]) for p in plans]
    assert all(a.mended == "seal" and a.rank == 0 for a in alarms)
    mask = int(plans[0]["mask"], 16).bit_length() - 1
    assert alarms[0].bits == f"bit {mask}"
    assert same(values(model, optimizer), golden(65))
    assert len(events(tmp_path / "run")) == len(plans)
    assert ".data" in warned[0] and "; mended by its seal" in warned[0]


@pytest.mark.parametrize("policy", ["stop", "warn", "mend"])
def test_what_cannot_be_mended_stops_or_warns(tmp_path, warned, policy):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def strike(step):
        if step == 5:
            holdfast.inject(model, holdfast.flip_plan(model, tensors=["model.fc.weight"], flips=9))

    ck = make(tmp_path / "run", model, optimizer, watch={"on_alarm": policy})
    if policy == "warn":
        train(ck, model, optimizer, 0, 8, strike)
    else:
        with pytest.raises(holdfast.CorruptError, match=r"after step 5, rank 0: model.fc.weight"):
            train(ck, model, optimizer, 0, 8, strike)
        assert step_of(optimizer) == 6  # raised before the update that would have used it
    ck.close(save=False)
    assert "code that writes through .data" in warned[0]
    assert [e["tensor"] for e in events(tmp_path / "run")] == ["model.fc.weight"]
    assert events(tmp_path / "run")[0]["mended"] == ""


@pytest.mark.parametrize("is_saved", [True, False])
@pytest.mark.parametrize("policy", ["stop", "mend"])
def test_damage_that_stops_training_is_not_saved(tmp_path, policy, is_saved):
    model = Net().eval()  # a forward pass in training would change the averages of its norm
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ck = make(tmp_path / "run", model, optimizer, every="1000 steps", watch={"on_alarm": policy})
    train(ck, model, optimizer, 0, 6)
    ck.save(5).durable()
    backward(model, 6)
    optimizer.step()
    optimizer.zero_grad()
    ck.step(6)
    holdfast.inject(model, holdfast.flip_plan(model, tensors=["model.fc.weight"], flips=9))
    if is_saved:
        ck.save(6)
    backward(model, 7)
    with pytest.raises(holdfast.CorruptError, match="model.fc.weight"):
        optimizer.step()
    # As a program does that has caught the error.
    if is_saved:
        with pytest.raises(holdfast.UnavailableError, match="step 6"):
            ck.close()
    else:
        ck.close()
    assert [path.name for path in (tmp_path / "run").glob("step-*")] == ["step-00000005"]


def test_numbers_of_steps_may_have_gaps(tmp_path):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ck = make(tmp_path / "run", model, optimizer)
    ck._watch._costs.plan = lambda: Plan(every=2, period=8, window_bytes=1 << 20)
    for step in range(3, 200, 4):  # always odd
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()
        ck.step(step)
        if step > 100 and ck._watch._open is not None:
            holdfast.inject(model, holdfast.flip_plan(model, tensors=["model.fc.weight"]))
            break
    backward(model, step)
    optimizer.step()
    assert len(ck.watched.alarms) == 1
    ck.close(save=False)


def step_of(optimizer):
    return int(next(iter(optimizer.state.values()))["step"])


def test_a_stop_names_the_element_and_both_values(tmp_path):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with torch.no_grad():
        model.fc.weight[3, 7] = 0.0625
    ck = make(tmp_path / "run", model, optimizer, watch={"on_alarm": "stop"})

    def strike(step):
        if step == 5:
            model.fc.weight.data.view(torch.int32)[3, 7] ^= 1 << 30

    with pytest.raises(holdfast.CorruptError, match=r"model.fc.weight \[3, 7\] bit 30 is "
                       r"2.13e\+37; expected 0.0625: it changed between two updates"):
        train(ck, model, optimizer, 0, 8, strike)
    ck.close(save=False)


def test_a_save_that_copied_the_damage_is_made_again(tmp_path, warned, monkeypatch):
    monkeypatch.setattr(Saves, "settle_if_copied", lambda self: None)  # else it may come before the next update
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with make(tmp_path / "run", model, optimizer) as ck:
        train(ck, model, optimizer, 0, 6)
        backward(model, 6)
        optimizer.step()
        optimizer.zero_grad()
        ck.step(6)
        holdfast.inject(ck, holdfast.flip_plan(ck, tensors=["model.fc.weight"], bits="30"))
        ck.save(6)
        backward(model, 7)
        optimizer.step()  # finds and mends the flip before it settles the save
        assert ck.watched.alarms[0].mended == "seal"
        optimizer.zero_grad()
        ck.step(7)
        train(ck, model, optimizer, 8, 10)
        ck.save(9)
    assert len(ck.watched.alarms) == 1
    assert list((tmp_path / "run").glob("step-*9"))
    assert not list((tmp_path / "run").glob("step-*6"))
    assert any("model.fc.weight was damaged while it was saved" in line for line in warned)


# Nothing else is

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=1e-3, fused=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "adamw amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_training_without_faults_has_no_alarm(tmp_path, warned, kind):
    model = Net()
    optimizer = OPTIMIZERS[kind](model.parameters())
    with make(tmp_path / "run", model, optimizer) as ck:
        train(ck, model, optimizer, 0, STEPS)
        watched = ck.watched
    assert watched.alarms == [] and warned == []
    assert watched.cycle == 1 and watched.left_out == []
    assert watched.window_bytes == watched.bytes > 0
    assert 0.1 < watched.chance <= 1


def test_average_scaler_clipping_and_restored_state_are_no_alarm(tmp_path, warned):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with make(tmp_path / "run", model, optimizer, ema=average, scaler=scaler) as ck:
        for step in range(60):
            torch.manual_seed(step)
            loss = model(torch.randn(4, 2, 4, 4)).square().mean()
            scaler.scale(loss * (float("inf") if step % 7 == 3 else 1)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)  # leaves out the update if a gradient is infinite
            scaler.update()
            optimizer.zero_grad()
            average.update_parameters(model)
            ck.step(step)
            if step % 10 == 5:
                with torch.no_grad():
                    model.fc.weight.clamp_(-0.05, 0.05)  # torch counts it
                    model.norm.bias[0] = 0.25
            if step == 20:
                model.load_state_dict(model.state_dict())
                optimizer.load_state_dict(optimizer.state_dict())
            if step == 30:
                ck.save(step).durable()
                optimizer.state[model.fc.weight]["exp_avg"].zero_()
        assert ck.watched.alarms == []
        assert ck.resume(step=30) == 31
        train(ck, model, optimizer, 31, 40)
        assert ck.watched.alarms == []
    assert not [line for line in warned if "watch" in line or ".data" in line]


def test_accumulation_two_optimizers_and_closures(tmp_path, warned):
    model, head = Net(), nn.Linear(8, 2)
    first = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    second = torch.optim.LBFGS(head.parameters(), lr=0.1, max_iter=3)
    with make(tmp_path / "run", {"net": model, "head": head},
              {"net": first, "head": second}) as ck:
        for step in range(40):
            def closure():
                second.zero_grad()
                loss = head(model(torch.ones(2, 2, 4, 4)).detach()).square().mean()
                loss.backward()
                return loss

            backward(model, step)
            if step % 2:
                first.step()
                first.zero_grad()
            if step % 3 == 0:
                second.step(closure)
            ck.step(step)
        assert ck.watched.alarms == []
        plan = holdfast.flip_plan(ck, tensors=["model.head.weight"], bits="20")
        struck = []

        def late():
            if not struck:  # inside the closure, where Lightning has forward and backward
                struck.append(holdfast.inject(ck, plan))
            return closure()

        second.step(late)
        assert [alarm.tensor for alarm in ck.watched.alarms] == ["model.head.weight"]
    assert not [line for line in warned if "two optimizers" in line]


def test_a_write_to_a_parameter_that_shares_memory_with_a_slot_is_no_alarm(tmp_path, warned):
    """SAM steps aside and puts the parameter back, by giving it the memory of a slot."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with make(tmp_path / "run", model, optimizer) as ck:
        for step in range(10):
            backward(model, step)
            with torch.no_grad():
                for p in model.parameters():
                    optimizer.state[p]["old"] = p.detach().clone()
                    p.add_(p.grad, alpha=0.1)
            backward(model, step)
            for p in model.parameters():
                p.data = optimizer.state[p]["old"]
            optimizer.step()
            optimizer.zero_grad()
            ck.step(step)
        assert not ck.watched.alarms and not warned


def test_frozen_parameters_that_were_made_in_inference_mode_are_watched(tmp_path, warned):
    model = Net()
    with torch.inference_mode():
        model.frozen = torch.nn.Parameter(torch.ones(99), requires_grad=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with make(tmp_path / "run", model, optimizer) as ck:
        train(ck, model, optimizer, 0, 4)
        assert not ck.watched.alarms and not warned


def test_writes_through_data_are_an_alarm_that_says_so_unless_excluded(tmp_path, warned):
    for exclude, expected in (["model.fc.*"], 0), ([], 1):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        ck = make(tmp_path / f"run{expected}", model, optimizer,
                  watch={"on_alarm": "warn", "exclude": exclude})
        train(ck, model, optimizer, 0, 7, lambda step, model=model: step == 5 and
              model.fc.weight.data.mul_(0.5))
        assert len(ck.watched.alarms) == expected
        ck.close(save=False)
        assert bool(ck.watched.left_out) == bool(exclude)
    assert "code that writes through .data or NumPy" in warned[-1]


def test_a_tensor_that_is_written_to_in_each_step_is_not_told_of_for_ever(tmp_path, warned):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    ck = make(tmp_path / "run", model, optimizer, watch={"on_alarm": "warn"})
    train(ck, model, optimizer, 0, 120, lambda step: model.fc.weight.data.mul_(0.5))
    ck.close(save=False)
    assert len(ck.watched.alarms) == len(warned) == 100
    assert warned[-1].endswith("(no more is told of this tensor)")


def test_an_optimizer_without_hooks_is_not_watched(tmp_path, warned):
    model = Net()
    inner = torch.optim.SGD(model.parameters(), lr=1e-2)

    class Plain:
        param_groups, state = inner.param_groups, inner.state

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

        def step(self):
            for p in model.parameters():
                p.data -= 0.01 * p.grad

        def zero_grad(self):
            model.zero_grad()

    optimizer = Plain()
    with make(tmp_path / "run", model, optimizer) as ck:
        train(ck, model, optimizer, 0, 20)
        assert ck.watched.alarms == []
    assert any("so nothing is watched" in line for line in warned)


# What it may cost

def test_the_windows_keep_to_their_share(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    costs = Costs(0.005, 2.0)
    assert costs.plan() == Plan()
    for _ in range(20):
        clock[0] += 0.05
        costs.step()
        costs.window(1_000_000, 200e-6, 20e-6)  # 5 GB/s
    plan = costs.plan()
    assert plan.every == 1 and plan.window_bytes / 5e9 + 20e-6 <= 0.005 * 0.05
    assert plan.window_bytes / 5e9 > 0.5 * 0.005 * 0.05
    quick = Costs(0.005, 2.0)
    for _ in range(20):
        clock[0] += 0.001
        quick.step()
        quick.window(1_000_000, 200e-6, 20e-6)
    plan = quick.plan()
    cost = (plan.window_bytes / 5e9 + 20e-6) / plan.every
    assert plan.every > 1 and cost <= 0.005 * 0.001
    assert plan.agreed(Plan(1, 5000, 7)) == Plan(plan.every, 5000, plan.period)
    waiting = Costs(0.005, 2.0)
    for _ in range(20):
        clock[0] += 0.05
        waiting.step()
        waiting.window(1_000_000, 200e-6, 45e-3)  # for a GPU that has much to do
    plan = waiting.plan()
    assert plan.every > 500 and 0.9 * 0.0125 < plan.window_bytes / 5e9 <= 0.0125


@pytest.mark.parametrize("accumulated", [2, 8])
def test_a_window_may_take_the_share_of_all_steps_up_to_the_update(monkeypatch, accumulated):
    """It stays open so long. Otherwise a part of the bytes would be looked at as often as before
    with fewer windows: fewer flips would be seen, the longer gradients are accumulated."""
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    plain, costs = Costs(0.005, 2.0), Costs(0.005, 2.0)
    for step in range(40 * accumulated):
        clock[0] += 0.05
        plain.step()
        plain.window(1_000_000, 200e-6, 20e-6)
        updated = (step + 1) % accumulated == 0
        costs.step(updated=updated)
        if updated:
            costs.window(1_000_000, 200e-6, 20e-6)
    assert costs.plan().every == plain.plan().every == 1
    assert costs.plan().period == plain.plan().period
    assert costs.plan().window_bytes >= accumulated * plain.plan().window_bytes
    assert costs.plan().window_bytes / 5e9 <= accumulated * 0.005 * 0.05


def test_a_flip_in_any_step_of_an_accumulation_is_seen(tmp_path):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    plans = []
    with make(tmp_path / "run", model, optimizer) as ck:
        for step in range(4 * 40):
            backward(model, step)
            if step >= 16 and step % 4 == step // 4 % 4:  # in another step of each accumulation
                plans.append(holdfast.flip_plan(ck, roles=["parameter", "slot"], seed=step))
                holdfast.inject(ck, plans[-1])
            if step % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
            ck.step(step)
        alarms = ck.watched.alarms
    assert len(plans) == 36
    assert [(a.tensor, list(a.index)) for a in alarms] == [
        (plan["flips"][0]["tensor"], plan["flips"][0]["index"]) for plan in plans]


@pytest.fixture
def ranges(monkeypatch):
    """The first part and the end of each window that is opened."""
    found, plain = [], Windows.open

    def note(self, step, number):
        opened = plain(self, step, number)
        found.extend(opened.ranges.values())
        return opened

    monkeypatch.setattr(Windows, "open", note)
    return found


PARTS = -(-4_000_000 // (64 << 10))  # of a million parameters


def test_windows_follow_each_other_also_if_their_size_changes(tmp_path, monkeypatch, ranges):
    """Or some bytes would not be looked at in a cycle."""
    choose = random.Random(1)
    plans = lambda self: Plan(choose.choice([1, 1, 2]),  # noqa: E731
                              choose.randrange(100_000, 900_000), choose.randrange(4, 9))
    monkeypatch.setattr(Costs, "plan", plans)
    model = nn.Linear(1000, 1000, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with make(tmp_path / "run", model, optimizer) as ck:
        for step in range(120):
            optimizer.step()
            ck.step(step)
    at = 0
    assert max(last for _, last in ranges) == PARTS
    for first, last in ranges:
        assert first <= (0 if at == PARTS else at)
        at = last
    assert sum(first == 0 for first, _ in ranges) > 3


@pytest.mark.parametrize(("accumulated", "every"), [(2, 1), (4, 1), (2, 3), (3, 2)])
def test_all_bytes_are_looked_at_if_gradients_are_accumulated(tmp_path, monkeypatch, ranges,
                                                              accumulated, every):
    """A window stays open until the update, so none is opened after some of the steps."""
    monkeypatch.setattr(Costs, "plan", lambda self: Plan(every, 500_000, 10))
    model = nn.Linear(1000, 1000, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with make(tmp_path / "run", model, optimizer) as ck:
        for step in range(120):
            if step % accumulated == 0:
                optimizer.step()
            ck.step(step)
        cycle = ck.watched.cycle
    for begin in range(len(ranges) - 8):
        seen = {part for one in ranges[begin:begin + 8] for part in range(*one)}
        assert len(seen) == PARTS
    assert cycle == 8 * accumulated if every == 1 else cycle >= 8 * every


def test_a_size_that_is_measured_anew_does_not_cut_windows_again():
    order = WindowOrder().next().cut(Plan(2, 1000, 4), 10)
    assert order.number == 0 and order.next().number == 1 and order.agreed(29).next().number == 0
    assert not order.is_outgrown(Plan(2, 1400, 9)) and not order.is_outgrown(Plan(2, 850, 9))
    assert order.is_outgrown(Plan(2, 1600, 4)) and order.is_outgrown(Plan(2, 700, 4))
    assert order.agreed(25).cut(Plan(1, 500, 4), 20).number == 10


def test_windows_do_not_get_smaller_because_an_alarm_takes_long(tmp_path, monkeypatch):
    clock, alarm = [0.0], FreezeWatch._alarm
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def slow(self, *words):
        clock[0] += 0.04
        alarm(self, *words)

    monkeypatch.setattr(FreezeWatch, "_alarm", slow)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def write(step):
        clock[0] += 0.05
        model.fc.weight.data.mul_(0.5)

    with make(tmp_path / "run", model, optimizer, watch={"on_alarm": "warn"}) as ck:
        train(ck, model, optimizer, 0, 40, write)
        assert len(ck.watched.alarms) > 30 and ck.watched.cycle == 1


@LONG
def test_the_chance_that_is_told_is_that_of_random_flips(tmp_path, monkeypatch):
    """A step takes 50 ms, and a window is open for 40 of them; 84 of 220 parameters are watched."""
    clock, choose, flips = [0.0], random.Random(1), 250
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    with make(tmp_path / "run", model, optimizer, watch={"exclude": ["*.fc.*"]}) as ck:
        for step in range(flips + 20):
            backward(model, step)
            optimizer.step()
            optimizer.zero_grad()
            is_early = choose.random() < 0.2
            for now, passed in (True, 0.01), (False, 0.04):
                clock[0] += passed
                if step >= 20 and is_early == now:
                    plan = holdfast.flip_plan(ck, roles=["parameter", "slot"], bits="0-10",
                                              seed=step)
                    holdfast.inject(ck, plan)
                if now:
                    ck.step(step)
        watched = ck.watched
    assert watched.chance == pytest.approx(0.8 * 84 / 220, rel=0.01)
    deviation = math.sqrt(watched.chance * (1 - watched.chance) / flips)
    assert abs(len(watched.alarms) / flips - watched.chance) < 3 * deviation


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"share": 0}, ValueError, "share=0; expected more than 0"),
    ({"share": 2}, ValueError, "share=2; expected more than 0 and at most 1"),
    ({"share": "all"}, TypeError, "share='all'; expected a number"),
    ({"on_alarm": "pray"}, ValueError, "on_alarm='pray'; expected 'mend', 'stop' or 'warn'"),
    ({"exclude": "model"}, TypeError, "exclude='model'; expected a list of patterns"),
    ({"shares": 1}, TypeError, "Watch: unknown keyword shares=; expected share"),
])
def test_wrong_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        holdfast.Watch(**options)


def test_a_watch_must_be_of_its_class(tmp_path):
    model = Net()
    with pytest.raises(TypeError, match=r"^watch=True; expected holdfast.Watch\("):
        holdfast.Checkpointer(tmp_path / "run", model=model, watch=True)
    with holdfast.Checkpointer(tmp_path / "run", model=model) as ck:
        assert ck.watched is None
