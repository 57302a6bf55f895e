"""The guards of holdfast.Watch: an alarm for a fault, and none for the same training without.

Guards find faults that leave no other trace, as a gradient that is damaged before ranks sum it: all
ranks have the same wrong parameters then.
"""

import math

import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from watched_net import STEPS, Lines, Net, backward, events, make, train

import holdfast
from holdfast.torch.watch.dispersion import DispersionGuard
from holdfast.torch.watch.spikes import Figures

ALL = {"dispersion": 10, "spike": 10, "range": 10}


def plain(run, kind=torch.optim.AdamW, **watch):
    model = Net()
    optimizer = kind(model.parameters(), lr=1e-2)
    return make(run, model, optimizer, watch=watch), model, optimizer


def run_with_losses(ck, model, optimizer, steps, change=lambda step, loss: loss):
    for step in range(steps):
        loss = backward(model, step)
        optimizer.step()
        optimizer.zero_grad()
        ck.step(step, change(step, loss))


# Spikes

@pytest.mark.parametrize(("spike", "text"), [
    (lambda loss: loss * 1000, "the loss is"), (lambda loss: loss * math.nan, "the loss is nan"),
    (lambda loss: loss.item() * 1000, "the loss is"), (lambda loss: loss * 1.5, None)])
def test_a_loss_that_spikes_is_told(tmp_path, warned, spike, text):
    ck, *job = plain(tmp_path / "run", spike=10)
    with ck:
        run_with_losses(ck, *job, 40, lambda step, loss: spike(loss) if step == 30 else loss)
        alarms = ck.watched.alarms
    assert [(a.step, a.tensor, a.guard, a.mended) for a in alarms] == (
        [] if text is None else [(30, "loss", "spike", "")])
    assert text is None or (text in warned[0] and "expected" in warned[0])
    assert [event["guard"] for event in events(tmp_path / "run")] == ["spike"] * len(alarms)


def test_a_loss_near_0_may_jump():
    figures = Figures(10)
    for value in [2.0] * 20 + [1e-9] * 100:
        assert figures.look(value) == ""
    assert figures.look(1e-3) == ""
    for _ in range(100):
        figures.look(1e-9)
    assert figures.look(3e-3) == "at most 1e-08, 10 times the largest of the last 100"


def test_a_gradient_that_spikes_is_told_before_the_update(tmp_path):
    ck, model, optimizer = plain(tmp_path / "run", spike=10, on_alarm="warn")
    with ck:
        train(ck, model, optimizer, 0, 40,
              lambda step: step == 30 and model.fc.weight.grad.mul_(1e6))
        alarms = ck.watched.alarms
    assert [(a.step, a.tensor, a.guard) for a in alarms] == [(30, "norm of the gradient", "spike")]
    assert "10 times the largest of the last 3" in str(alarms[0])


def test_an_update_that_a_gradient_scaler_leaves_out_is_no_spike(tmp_path, warned):
    for fused in False, True:
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with make(tmp_path / f"run{fused}", model, optimizer, scaler=scaler,
                  watch={"spike": 10}) as ck:
            for step in range(60):
                torch.manual_seed(step)
                loss = model(torch.randn(4, 2, 4, 4)).square().mean()
                scaler.scale(loss * (float("inf") if step % 7 == 3 else 1)).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                ck.step(step, loss)
            assert ck.watched.alarms == []


def test_a_spike_stops_only_if_an_alarm_is_to_stop(tmp_path):
    for policy in "warn", "mend", "stop":
        ck, *job = plain(tmp_path / policy, spike=10, on_alarm=policy)
        calls = lambda step, loss: loss * 1000 if step == 30 else loss  # noqa: E731
        if policy == "stop":
            with pytest.raises(holdfast.CorruptError, match=r"after step 30, rank 0: the loss is"):
                run_with_losses(ck, *job, 40, calls)
        else:
            run_with_losses(ck, *job, 40, calls)
        ck.close(save=False)
        assert len(ck.watched.alarms) == 1


# Ranges

def damage(tensor, value):
    """Between update and step(), where no window is open; the watch sees no change of bits."""
    with torch.no_grad():
        tensor.view(-1)[3] = value


@pytest.mark.parametrize(("name", "value", "text"), [
    ("model.fc.weight", 1e30, "at most 10, 10 times the largest so far"),
    ("model.fc.weight", math.inf, "a finite number"),
    ("model.fc.weight", math.nan, "a finite number"),
    ("optimizer.fc.weight.exp_avg_sq", -1e-9, "at least 0"),
    ("optimizer.fc.weight.exp_avg", -1e-3, None), ("model.fc.weight", 0.9, None)])
def test_an_element_out_of_range_is_named(tmp_path, warned, name, value, text):
    ck, model, optimizer = plain(tmp_path / "run", range=10)
    weight = model.fc.weight
    with ck:
        for step in range(20):
            backward(model, step)
            optimizer.step()
            optimizer.zero_grad()
            if step == 15:
                slot = name.rsplit(".", 1)[1]
                damage(weight if slot == "weight" else optimizer.state[weight][slot], value)
            ck.step(step)
            if step == 15:
                alarms = ck.watched.alarms
    expected = [] if text is None else [(15, name, (0, 3), "range")]
    assert [(a.step, a.tensor, a.index, a.guard) for a in alarms] == expected
    assert text is None or f"{name} [0, 3] is {value:.3g}; expected {text}" in warned[0]


@pytest.mark.parametrize("resumes", [True, False])
def test_a_second_flip_is_seen_too(tmp_path, resumes):
    """The first one must not make its value usual, neither after resume() nor without."""
    ck, model, optimizer = plain(tmp_path / "run", range=10, spike=10)
    with ck:
        for step in range(60):
            loss = backward(model, step)
            if step in (30, 53):
                model.conv.weight.grad.mul_(1e6)
            optimizer.step()
            optimizer.zero_grad()
            if step in (30, 55):
                damage(model.fc.weight, 1e6 if step == 30 else 1e5)
            ck.step(step, loss)
            if step == 25:
                ck.save(step).durable()
            if step == 30:
                first = len(ck.watched.alarms)
                if resumes:
                    assert ck.resume(step=25) == 26
                else:
                    damage(model.fc.weight, 0.1)
        second = [(a.step, a.tensor) for a in ck.watched.alarms[first:]]
    assert first == 2
    assert [one for one in second if one[1] == "model.fc.weight"][0] == (55, "model.fc.weight")
    assert (52, "norm of the gradient") in second


def test_slots_that_grow_are_in_range(tmp_path):
    ck, model, optimizer = plain(tmp_path / "run", torch.optim.Adagrad, range=10)
    with ck:
        for step in range(20):
            backward(model, step)
            for parameter in model.parameters():
                parameter.grad.mul_(10.0 ** step)
            optimizer.step()
            optimizer.zero_grad()
            ck.step(step)
        assert ck.watched.alarms == []


def test_ranges_of_parts_and_odd_tensors(tmp_path):
    """A tensor of several parts, one that is not contiguous, 16 bits, and a counter."""
    torch.manual_seed(0)
    model = nn.ParameterDict({
        "long": torch.randn(50_000), "turned": nn.Parameter(torch.randn(8, 6).t()),
        "short": torch.randn(40).half(), "many": nn.Parameter(torch.arange(9.0))})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with make(tmp_path / "run", model, optimizer, watch={"range": 10}) as ck:
        for step in range(3000):  # how many it takes to look at all depends on the machine
            if step == 800:
                with torch.no_grad():
                    model["long"][49_999], model["turned"][4, 7], model["short"][5] = 1e9, -1e9, 6e4
            optimizer.step()
            ck.step(step)
            if len(ck.watched.alarms) == 3:
                break
        alarms = ck.watched.alarms
    assert {(a.tensor, a.index) for a in alarms} == {
        ("model.long", (49_999,)), ("model.turned", (4, 7)), ("model.short", (5,))}


# Dispersion, and all guards on several ranks

def spread_train(rank, world, run, steps, factor, watch):
    """Rank 1's gradient of fc.weight is multiplied in step 30, before ranks average it."""
    lines = Lines()
    net = Net()
    now = [0]
    if rank == 1:
        net.fc.weight.register_hook(lambda g: g * factor if now[0] == 30 else None)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    error, ck = None, make(run, model, optimizer, watch=watch)
    try:
        for step in range(steps):
            now[0] = step
            torch.manual_seed(step * 10 + rank)
            loss = model(torch.randn(4, 2, 4, 4)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ck.step(step, loss)
    except holdfast.CorruptError as raised:
        error = str(raised)
    ck.close(save=False)
    return {"alarms": ck.watched.alarms, "weights": net.fc.weight.detach().clone().numpy(),
            "error": error, "lines": lines.lines}


def test_gradients_near_0_may_differ():
    guard = DispersionGuard(10, rank=2)

    def hear(*norms):
        return guard.hear([{"of": "all", "norms": {"7": norm}} for norm in norms],
                          lambda _: [{"7": "model.fc.weight"}] * len(norms))

    for _ in range(10):
        assert hear(1.0, 0.5) == []
    assert hear(9e-4, 1e-9) == []
    assert [alarm.rank for alarm in hear(2e-3, 1e-9)] == [0]
    guard.restart()  # a rank that is new has not heard the first norms
    assert [alarm.rank for alarm in hear(9e-4, 1e-9)] == [0]


@pytest.mark.parametrize(("world", "factor"), [(2, 1e6), (3, math.nan)])
def test_a_gradient_that_is_damaged_before_the_sum_is_told_of_its_rank(tmp_path, world, factor):
    done = run_ranks(world, spread_train, tmp_path / "run", 40, factor, {"dispersion": 10})
    for one in done:
        assert one["weights"].tobytes() == done[0]["weights"].tobytes()  # wrong on all alike
        assert [(a.step, a.rank, a.tensor, a.guard) for a in one["alarms"]] == [
            (30, 1, "model.fc.weight", "dispersion")]
        assert "times the median of the other ranks" in one["lines"][0]


def test_dispersion_stops_all_ranks_alike(tmp_path):
    done = run_ranks(3, spread_train, tmp_path / "run", 50, 1e6,
                     {"dispersion": 10, "on_alarm": "stop"})
    assert "rank 1: the norm of its gradient" in done[0]["error"]
    assert {one["error"] for one in done} == {done[0]["error"]}


def scaled_train(rank, world, run):
    """The loss of rank 1 overflows in some steps, and all ranks leave their updates out."""
    alarms, made = [], []
    for fused in False, True:
        model = DistributedDataParallel(Net())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with make(run / str(fused), model, optimizer, scaler=scaler,
                  watch={"dispersion": 10}) as ck:
            for step in range(20):
                torch.manual_seed(step * 10 + rank)
                loss = model(torch.randn(4, 2, 4, 4)).square().mean()
                overflows = rank == 1 and step % 7 == 5
                scaler.scale(loss * (math.inf if overflows else 1)).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                ck.step(step, loss)
            ck.save(19)  # a comparison of all ranks
            alarms += map(str, ck.watched.alarms)
            made.append(scaler.get_scale())
    return alarms, made


def test_an_update_that_a_gradient_scaler_leaves_out_is_no_dispersion(tmp_path):
    for alarms, made in run_ranks(2, scaled_train, tmp_path):
        assert alarms == [] and made == [0.5, 0.5]  # both ranks have halved them thrice


def test_what_all_ranks_see_is_told_once(tmp_path):
    """The sum of the gradients is the same on all ranks."""
    done = run_ranks(3, spread_train, tmp_path / "run", 50, 1e6, {"spike": 10})
    for one in done:
        assert [(a.rank, a.tensor) for a in one["alarms"]][:1] == [(0, "norm of the gradient")]
        assert len([a for a in one["alarms"] if a.tensor == "norm of the gradient"]) == 1


def test_the_guards_are_silent_without_faults(tmp_path, warned):
    ck, *job = plain(tmp_path / "run", **ALL)
    with ck:
        run_with_losses(ck, *job, STEPS)
        assert ck.watched.alarms == []
    assert warned == []


def test_the_guards_are_silent_on_two_ranks_without_faults(tmp_path):
    for one in run_ranks(2, spread_train, tmp_path / "run", STEPS, 1.0, ALL, timeout=900):
        assert one["alarms"] == [] and one["error"] is None


@pytest.mark.parametrize("name", ALL)
def test_wrong_factors_are_refused(name):
    with pytest.raises(ValueError, match=rf"{name}=0.5; expected a factor above 1, or None"):
        holdfast.Watch(**{name: 0.5})
    with pytest.raises(TypeError, match=rf"{name}='much'; expected a number"):
        holdfast.Watch(**{name: "much"})


def test_a_device_that_fails_does_not_keep_a_run_from_closing(tmp_path, warned):
    class Lost:
        """A figure of a device that has failed."""

        def __float__(self):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    ck, model, optimizer = plain(tmp_path / "run", spike=10)
    train(ck, model, optimizer, 0, 3)
    ck._watch._guards._spikes._coming.append((2, "loss", "loss", Lost()))
    ck.close(save=False)
    assert any("the last figures of the guards are lost: CUDA error" in line for line in warned)
