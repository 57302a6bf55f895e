"""Updates that are taken back (Recover(undo=True)): how many bits come back, and real deaths between updates."""

import json
from pathlib import Path

import pytest
import torch
from recovered_jobs import launch
from torch import nn

import holdfast
from holdfast.launch.decisions import decide
from holdfast.torch.recover.undo import check_replicas
from holdfast.torch.recover.undone_updates import KeptUpdate

JOB = Path(__file__).parent / "undone.py"
STEPS = 9
ELEMENTS = 4000
SQUARES = ("exp_avg_sq", "square_avg", "acc_delta", "sum")  # slots that are never negative

# The shares in % of elements whose bits come back after 30 updates, at least: of parameters, and of the slot
# of which fewest do. The greatest distance of any element is at most a share of the greatest
# element. It is larger where a decay is part of an adaptive step: some elements are divided by something near 0.
NEAR, LESS_NEAR = 2e-6, 1e-4
CASES = {
    "SGD(lr=0.1)": (97, 100, NEAR),
    "SGD(lr=0.1, weight_decay=1e-2)": (60, 100, NEAR),
    "SGD(lr=0.1, momentum=0.9, maximize=True)": (97, 60, NEAR),
    "SGD(lr=0.1, momentum=0.9, weight_decay=1e-2, dampening=0.1)": (95, 60, NEAR),
    "SGD(lr=0.1, momentum=0.9, weight_decay=1e-2, nesterov=True)": (60, 60, NEAR),
    "SGD(lr=0.1, momentum=0.9, nesterov=True, foreach=True)": (95, 60, NEAR),
    "SGD(lr=0.1, momentum=0.9, nesterov=True, fused=True)": (95, 60, NEAR),
    "Adam()": (95, 45, NEAR), "Adam(weight_decay=1e-2)": (90, 45, NEAR), "Adam(fused=True)": (95, 45, NEAR),
    "AdamW(foreach=False)": (95, 45, NEAR), "AdamW(foreach=True)": (95, 45, NEAR),
    "AdamW(fused=True)": (95, 45, NEAR), "AdamW(lr=torch.tensor(1e-3))": (95, 45, NEAR),
    "NAdam()": (90, 45, NEAR), "NAdam(weight_decay=1e-2)": (45, 35, LESS_NEAR),
    "NAdam(weight_decay=1e-2, decoupled_weight_decay=True, foreach=True)": (90, 45, NEAR),
    "RAdam()": (95, 45, NEAR), "RAdam(weight_decay=1e-2)": (90, 45, NEAR),
    "RAdam(weight_decay=1e-2, decoupled_weight_decay=True, foreach=True)": (90, 45, NEAR),
    "Adagrad()": (90, 95, NEAR), "Adagrad(fused=True)": (90, 95, NEAR),
    "Adagrad(weight_decay=1e-2, lr_decay=0.01, initial_accumulator_value=0.1)": (60, 95, LESS_NEAR),
    "RMSprop(lr=1e-3)": (90, 95, NEAR), "RMSprop(lr=1e-3, weight_decay=1e-2)": (40, 90, LESS_NEAR),
    "RMSprop(lr=1e-3, centered=True, foreach=True)": (90, 55, NEAR),
    "RMSprop(lr=1e-3, momentum=0.9, centered=True, weight_decay=1e-2)": (75, 50, NEAR),
    "Adadelta()": (90, 50, NEAR), "Adadelta(foreach=True)": (90, 50, NEAR)}


def made(case, parameters):
    name, options = case[:-1].split("(", 1)
    return eval(f"torch.optim.{name}(parameters, {options})")


def undo_one(case, updates, *, is_sparse=False):
    """The parameter and the slots before the last of some updates, after it, and when it was taken back."""
    torch.manual_seed(0)
    one, scale = nn.Parameter(0.05 * torch.randn(ELEMENTS)), 10 ** (5 * torch.rand(ELEMENTS) - 6)
    optimizer, kept, seen = made(case, [one]), KeptUpdate(), []

    def look():
        state = {name: torch.as_tensor(slot).clone() for name, slot in optimizer.state.get(one, {}).items()
                 if slot is not None}
        seen.append({"parameter": one.detach().clone(), **state})

    for number in range(updates):
        one.grad = torch.randn(ELEMENTS) * scale * (torch.rand(ELEMENTS) < 0.02 if is_sparse else 1)
        if number == updates - 1:
            look()
            kept.keep(optimizer)
        optimizer.step()
    look()
    one.grad.fill_(torch.nan)  # the next backward pass has begun
    kept.take_back()
    look()
    return seen


@pytest.mark.parametrize("case", CASES)
def test_most_bits_of_an_update_come_back_and_the_others_are_near(case):
    of_parameters, of_slots, most = CASES[case]
    for is_sparse in (False, True):
        before, after, now = undo_one(case, 30, is_sparse=is_sparse)
        assert now.keys() == before.keys()
        for name, old in before.items():
            equal = 100 * (now[name] == old).float().mean().item()
            assert now[name].isfinite().all(), name
            assert name not in SQUARES or (now[name] >= 0).all(), name
            if old.dim():
                assert equal >= (of_parameters if name == "parameter" else of_slots), (name, equal)
            assert (now[name] - old).abs().max() <= most * torch.maximum(old.abs(), after[name].abs()).max(), name


@pytest.mark.parametrize("case", CASES)
def test_slots_of_a_first_update_are_what_they_were(case):
    before, _, now = undo_one(case, 1)
    assert now.keys() == before.keys()
    assert all(torch.equal(now[name], old) for name, old in before.items() if name != "parameter")
    assert now["parameter"].isfinite().all()


def test_an_average_that_an_update_does_not_read_is_dropped():
    before, _, now = undo_one("AdamW(betas=(0.0, 0.99))", 30)
    assert not now["exp_avg"].any() and (now["exp_avg_sq"] == before["exp_avg_sq"]).float().mean() > 0.9
    assert (now["parameter"] == before["parameter"]).float().mean() > 0.9


def test_the_newest_update_that_nobody_lacks_is_the_one_to_go_on_after():
    def courses(**told):
        made = decide({int(rank[1:]): {"committed": one[0], "ready": one[0], "begun": one[1], "records": one[2]}
                       for rank, one in told.items()}, floor=0)
        return made.refused or (made.target, made.courses)

    # Rank 1 is lost. The others have made other updates, or it has made none of an update that all others have.
    assert courses(r0=(6, True, [[1, 6]]), r2=(5, True, [[1, 5]])) == (5, {0: "undo", 2: "back"})
    assert courses(r0=(6, True, [[1, 5]]), r2=(6, False, [])) == (5, {0: "undo", 2: "undo"})
    assert courses(r0=(6, True, [[1, 5], [2, 6]]), r2=(6, False, [[1, 6]])) == (6, {0: "back", 2: "go on"})
    assert courses(r0=(6, False, [])) == (6, {0: "go on"})
    assert courses(r0=(7, True, []), r2=(5, True, [])) == (
        "rank 0 has made update 7, and others have made update 5; expected at most one more, which can be taken back")


def refused(tmp_path, make, **options):
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError) as error:
        holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=make(model.parameters()),
                              recover=holdfast.Recover(undo=True), **options)
    assert not (tmp_path / "run").exists()
    return str(error.value)


def hooked(parameters):
    made = torch.optim.SGD(parameters)
    made.register_step_pre_hook(lambda *_: None)
    return made


EXPECTED = "expected SGD, Adam, AdamW, NAdam, RAdam, Adagrad, RMSprop or Adadelta of torch, without AMSGrad"


@pytest.mark.parametrize("make, why", [
    (lambda one: torch.optim.AdamW(one, amsgrad=True), f"AdamW with amsgrad cannot be taken back; {EXPECTED}"),
    (torch.optim.Adamax, f"Adamax cannot be taken back; {EXPECTED}"),
    (torch.optim.Rprop, f"Rprop cannot be taken back; {EXPECTED}"),
    (torch.optim.LBFGS, f"LBFGS cannot be taken back; {EXPECTED}"),
    (type("Own", (torch.optim.SGD,), {}), f"Own cannot be taken back; {EXPECTED}"),
    (lambda one: torch.optim.Adadelta(one, weight_decay=0.1),
     "an update of Adadelta with weight_decay cannot be taken back; expected weight_decay=0"),
    (hooked, "SGD has hooks of its own around step(), whose changes cannot be taken back; expected none")])
def test_what_cannot_be_taken_back_is_refused_at_the_start(tmp_path, make, why):
    said = refused(tmp_path, make)
    assert said.startswith("undo=True: ") and said.endswith(why) and "\n" not in said


def test_a_fused_optimizer_with_a_scaler_and_unfit_options_are_refused(tmp_path):
    said = refused(tmp_path, lambda one: torch.optim.Adam(one, fused=True), scaler=torch.amp.GradScaler("cpu"))
    assert said == ("undo=True: a fused Adam with a GradScaler divides gradients itself, so that they cannot be "
                    "kept; expected fused=False")
    with pytest.raises(ValueError, match="^undo=True, log='messages': .*; expected one of the two$"):
        holdfast.Recover(undo=True, log="messages")
    with pytest.raises(ValueError, match="^undo=2; expected True or False$"):
        holdfast.Recover(undo=2)


def test_sparse_gradients_and_closures_are_refused_in_the_update():
    one = nn.Embedding(4, 2, sparse=True)
    one(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="^undo=True: a gradient is sparse; expected dense ones$"):
        KeptUpdate().keep(torch.optim.SGD(one.parameters()))


class Ran:
    """What a run of undone.py has left, by rank."""

    def __init__(self, run, kills="-", holds="-"):
        self.code, self.said = launch([JOB, run, STEPS, kills, holds, "AdamW"], ranks=3, said=f"{run}.said")
        assert self.code == 0, self.said
        self.lines = [[json.loads(line) for line in Path(f"{run}.losses.{rank}").read_text().splitlines()]
                      for rank in range(3)]
        self.end = [json.loads(Path(f"{run}.end.{rank}").read_text()) for rank in range(3)]
        self.recovered = sorted((json.loads(line) for one in Path(run).glob("events/*.jsonl")
                                 for line in one.read_text().splitlines() if '"event":"recovered"' in line.replace(" ", "")),
                                key=lambda one: one["step"])


def test_survivors_that_are_an_update_ahead_take_it_back_and_replicas_are_alike(tmp_path):
    whole = Ran(tmp_path / "whole")
    # Nobody is ahead in step 1. Rank 0 has made the update of step 3, and rank 2 has not. Those of steps 5 and 8
    # were made by all survivors; nobody knows whether the lost rank has. Step 8 is the last.
    ran = Ran(tmp_path / "run", "1:1:forward,1:3:gate,0:5:gate,1:8:gate", "2:3")
    for rank, (lines, expected) in enumerate(zip(ran.lines, whole.lines, strict=True)):
        assert [(step, samples) for step, _, samples, _ in lines] == [(one[0], one[2]) for one in expected]
        assert [loss for _, loss, *_ in lines] == pytest.approx([one[1] for one in expected], rel=1e-4)
        assert len({pid for *_, pid in lines}) == (2, 4, 1)[rank], ran.said
    assert len({end["alike"] for end in ran.end}) == 1 and all(end["finite"] for end in ran.end)
    assert [(one["counter"], one["generator"], one["rate"]) for one in ran.end] == [
        (one["counter"], one["generator"], one["rate"]) for one in whole.end]
    assert [(one["step"], one["rung"], one["exact"], one["outcome"], one["reason"]) for one in ran.recovered] == [
        (1, "replica", True, "back", ""), *(
            (step, "replica", False, "undo", f"undo: rank {ranks} took 1 update back, and not all bits come back")
            for step, ranks in ((3, "0"), (5, "1, 2"), (8, "0, 2")))], ran.said
    assert (tmp_path / f"run/step-{STEPS - 1:08}").is_dir()


def test_ranks_with_different_parameters_are_refused():
    check_replicas([[b"a", b"b"], [b"b", b"a"]])
    with pytest.raises(ValueError, match="^undo=True: ranks have different parameters; expected replicas on all ranks"):
        check_replicas([[b"a"], [b"b"]])
