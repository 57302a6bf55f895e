"""What a Checkpointer tells its user: lines on stderr, the newest durable step, clear refusals."""

import contextlib
import io
import json
import logging
import os
import subprocess
from pathlib import Path

import pytest
import torch
from grouped import grouped
from ranks import run_ranks
from torch import nn

import holdfast
from holdfast.torch.loop import messages


@pytest.fixture(autouse=True)
def usual_level(monkeypatch):
    """The other tests ask for warnings only (conftest.py)."""
    monkeypatch.delenv("HOLDFAST_LOG")


class Toy:
    def __init__(self, run, **options):
        torch.manual_seed(0)
        self.model = nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.ck = holdfast.Checkpointer(run, model=self.model, optimizer=self.optimizer,
                                        **grouped(space_reserve=0, **options))

    def train(self, steps):
        for step in steps:
            self.model(torch.ones(2)).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.ck.step(step)


def lines_of(capfd):
    return [line for line in capfd.readouterr().err.splitlines() if line.startswith("holdfast: ")]


def test_there_is_one_line_at_resume_and_one_at_the_end(tmp_path, capfd):
    toy = Toy(tmp_path / "run", every="2 steps")
    assert toy.ck.resume() == 0
    assert lines_of(capfd) == [f"holdfast: {tmp_path}/run: no checkpoint yet, begins with step 0"]
    toy.train(range(4))
    toy.ck.close()
    (end,) = lines_of(capfd)
    assert f"{tmp_path}/run: step 3 is the newest saved; 2 saves, for which training waited" in end
    again = Toy(tmp_path / "run", every="2 steps")
    assert again.ck.resume() == 4
    assert lines_of(capfd) == [f"holdfast: {tmp_path}/run: resumed after step 3"]
    again.ck.close()


@pytest.mark.parametrize("how", ["keyword", "environment"])
def test_each_save_is_shown_on_request_and_its_reason_is_in_the_events(
        tmp_path, capfd, monkeypatch, how):
    if how == "environment":
        monkeypatch.setenv("HOLDFAST_LOG", "info")
    toy = Toy(tmp_path / "run", every="2 steps", verbose=True if how == "keyword" else None)
    toy.ck.resume()
    toy.train(range(2))
    toy.ck.save(2)
    toy.ck.close()
    lines = lines_of(capfd)
    assert "holdfast: saving after step 1: every 2 steps" in lines
    assert "holdfast: saving after step 2: asked for" in lines
    events = [json.loads(line) for line in
              (tmp_path / "run/events/rank-0000.jsonl").read_text().splitlines()]
    why = {event["step"]: event["why"] for event in events if event["event"] == "save_captured"}
    assert why == {1: "every 2 steps", 2: "asked for"}


@pytest.mark.parametrize("how", ["keyword", "environment"])
def test_only_warnings_on_request(tmp_path, capfd, monkeypatch, how):
    if how == "environment":
        monkeypatch.setenv("HOLDFAST_LOG", "warning")
    toy = Toy(tmp_path / "run", every="2 steps", verbose=False if how == "keyword" else None)
    toy.ck.resume()
    toy.train(range(2))
    toy.ck.close()
    assert lines_of(capfd) == []


@pytest.mark.parametrize(("level", "shown"), [("debug", True), ("DEBUG", True), ("error", False),
                                              ("critical", False), ("loud", None)])
def test_no_level_of_the_log_ends_a_training(level, shown, monkeypatch, caplog):
    monkeypatch.setenv("HOLDFAST_LOG", level)
    for _ in range(2):
        assert messages.Messages(0, None)._verbose is shown
    warned = [one.getMessage() for one in caplog.records]
    assert warned == (["HOLDFAST_LOG=loud is ignored; expected info or warning"]
                      if shown is None else [])


@pytest.mark.parametrize(("options", "words"), [
    ({"verbose": "info"}, "verbose='info'; expected True, False or None"),
    ({"on_durable": "print"}, "on_durable='print'; expected a function"),
])
def test_what_makes_no_sense_is_refused_at_once(tmp_path, options, words):
    with pytest.raises(TypeError, match=words):
        Toy(tmp_path / "run", **options)


def test_a_program_with_its_own_log_gets_the_lines_there(tmp_path, capfd, caplog):
    with caplog.at_level(logging.INFO, logger="holdfast"):
        toy = Toy(tmp_path / "run")
        toy.ck.resume()
        toy.ck.close()
    assert "no checkpoint yet" in caplog.text and lines_of(capfd) == []


def lines_of_a_rank(rank, world, run):
    os.environ.pop("HOLDFAST_LOG", None)  # of the process that ranks are forked from
    with contextlib.redirect_stderr(io.StringIO()) as told:
        toy = Toy(run, every="never")
        toy.ck.resume()
        toy.ck.close()
    return told.getvalue().splitlines()


def test_only_rank_0_tells(tmp_path):
    first, second = run_ranks(2, lines_of_a_rank, tmp_path / "run")
    assert len(first) == 2 and second == []


def test_the_newest_durable_step_is_known_and_told(tmp_path):
    told = []
    toy = Toy(tmp_path / "run", every="never", on_durable=lambda *found: told.append(found))
    toy.ck.resume()
    assert toy.ck.latest_step is None
    handle = toy.ck.save(5)
    handle.durable()
    assert toy.ck.latest_step == 5
    assert told == [(5, str(tmp_path / "run/step-00000005"))]
    toy.ck.save(6)
    toy.ck.close()
    assert toy.ck.latest_step == 6 and [step for step, _ in told] == [5, 6]
    again = Toy(tmp_path / "run")
    again.ck.resume()
    assert again.ck.latest_step == 6
    again.ck.close()


def test_a_state_dict_is_no_model(tmp_path):
    model = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"model: a torch\.Tensor; expected a torch module.*"
                                        r"not a state_dict"):
        holdfast.Checkpointer(tmp_path / "run", model=model.state_dict())
    with pytest.raises(TypeError, match=r"model: a builtins\.int; expected a torch module"):
        holdfast.Checkpointer(tmp_path / "run", model=7)


def test_parameters_of_a_loss_module_are_told_apart_from_a_late_wrapper(tmp_path):
    model, loss = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    with pytest.raises(ValueError, match=r'expected the module that has it in model= too'):
        holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer)
    holdfast.Checkpointer(tmp_path / "run", model={"net": model, "loss": loss},
                          optimizer=optimizer).close()


def test_an_optimizer_that_was_forgotten_is_asked_for(tmp_path, caplog):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ck = holdfast.Checkpointer(tmp_path / "run", model=model)
    ck.resume()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    ck.step(0)
    ck.close()
    assert "expected Checkpointer(..., optimizer=optimizer)" in caplog.text


def test_show_names_what_is_saved_beside_tensors(tmp_path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    with holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer,
                               scheduler=scheduler,
                               objects={"draws": torch.Generator()}) as ck:
        ck.values["best"] = 0.5
        ck.save(7)
    program = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
    words = [str(program), "show", str(tmp_path / "run")]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    summary = shown.partition("beside tensors (--objects prints all of it):\n")[2]
    rows = dict(line.split(maxsplit=1) for line in summary.splitlines())
    assert rows == {"optimizers": "optimizer (torch.optim.sgd.SGD)", "objects": "scheduler",
                    "values": "best=0.5", "generators": "python, numpy, torch, draws"}
    both = subprocess.run([*words, "--objects"], capture_output=True, text=True, check=True).stdout
    assert '"$bytes"' in both and '"$bytes"' not in shown
