"""Calls that would lose steps are refused at the first such call."""

import logging
import os

from command import saved_steps
from grouped import grouped
import numpy as np
import pytest
import torch
from torch import nn

import holdfast


class Loop:
    def __init__(self, run, every="2 steps", width=4, **options):
        self.model = nn.Linear(4, width)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.ck = holdfast.Checkpointer(run, model=self.model, optimizer=self.optimizer,
                                        every=every,
                                        **grouped(signals=False, space_reserve=0, **options))

    def run(self, numbers):
        for number in numbers:
            self.model(torch.ones(2, 4)).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.ck.step(number)


def trained(run, numbers, **options):
    loop = Loop(run, **options)
    loop.ck.resume()
    loop.run(numbers)
    loop.ck.close()


@pytest.mark.parametrize("call", ["step", "save"])
def test_a_run_that_has_steps_is_resumed_first(tmp_path, call):
    trained(tmp_path / "run", range(8), keep=2)
    loop = Loop(tmp_path / "run", keep=2)
    with pytest.raises(ValueError, match=r"run: step-00000007 is there already; expected resume"):
        loop.run([0]) if call == "step" else loop.ck.save(0)
    loop.ck.close()
    assert saved_steps(tmp_path / "run") == [5, 7]


@pytest.mark.parametrize("harm", ["another model", "damage"])
def test_a_resume_that_failed_does_not_open_the_run_to_other_steps(tmp_path, harm):
    run = tmp_path / "run"
    trained(run, range(8), keep=2)
    loop = Loop(run, width=5 if harm == "another model" else 4, keep=2)
    for shard in run.rglob("*.safetensors") if harm == "damage" else ():
        shard.unlink()
    with pytest.raises((ValueError, holdfast.CorruptError)):
        loop.ck.resume()
    with pytest.raises(ValueError, match="step-00000007 is there already"):
        loop.run(range(6))
    loop.ck.close()
    assert saved_steps(run) == [5, 7]


def test_numbers_grow(tmp_path):
    loop = Loop(tmp_path / "run")
    loop.ck.resume()
    loop.run([0, 1, 2])
    with pytest.raises(ValueError, match="step 0 after step 2; expected numbers that grow"):
        loop.run([0])
    loop.ck.close()
    again = Loop(tmp_path / "run")
    assert again.ck.resume() == 2
    with pytest.raises(ValueError, match="step 0 after step 1; expected"):
        again.run([0])
    again.ck.close()


def test_two_updates_have_two_numbers(tmp_path):
    loop = Loop(tmp_path / "run")
    loop.ck.resume()
    loop.run([0, 1])
    loop.ck.step(1)  # nothing was updated since then
    with pytest.raises(ValueError, match="step 1 was given before, and the model was updated since"):
        loop.run([1])
    loop.run([2])
    loop.ck.save(3)
    loop.run([3])
    loop.ck.close()


def test_micro_batches_share_a_number(tmp_path):
    loop = Loop(tmp_path / "run")
    loop.ck.resume()
    for micro in range(12):
        loop.model(torch.ones(2, 4)).sum().backward()
        if micro % 4 == 3:
            loop.optimizer.step()
            loop.optimizer.zero_grad()
        loop.ck.step(micro // 4)
    loop.ck.close()
    assert saved_steps(tmp_path / "run")[-1] == 2


@pytest.mark.parametrize("call", ["step", "save"])
def test_numbers_are_not_negative(tmp_path, call):
    loop = Loop(tmp_path / "run")
    loop.ck.resume()
    with pytest.raises(ValueError, match="step=-1; expected 0 or more"):
        getattr(loop.ck, call)(-1)
    loop.ck.close()


@pytest.mark.parametrize(("run", "words"), [
    ("file", "file: it is a file; expected a folder"),
    ("file/run", "file/run: .*file is a file; expected a folder"),
])
def test_a_file_is_no_place_for_a_run(tmp_path, run, words):
    (tmp_path / "file").write_text("text")
    with pytest.raises(ValueError, match=words):
        Loop(tmp_path / run)
    assert (tmp_path / "file").read_text() == "text"


@pytest.mark.parametrize("run", ["", 5, None])
def test_what_is_no_folder_is_refused(run):
    with pytest.raises((TypeError, ValueError), match='expected a folder, such as "runs/gpt"'):
        Loop(run)


@pytest.mark.parametrize(("keyword", "expected"), [
    ("save_every", "every="), ("interval", "every="), ("keep_last", "keep="),
    ("max_to_keep", "keep="), ("path", "the folder as the first argument"),
    ("directory", "the folder as the first argument"), ("dataloader", "data="),
    ("max_steps", r"schedule=holdfast.Schedule\(total_steps=...\)")])
def test_the_keywords_of_other_libraries_lead_to_ours(keyword, expected):
    with pytest.raises(TypeError, match=f"unknown keyword {keyword}=; expected {expected}$"):
        holdfast.Checkpointer(model=nn.Linear(2, 2), **{keyword: 1})


def test_a_process_that_has_the_run_open_is_told_to_close_it(tmp_path):
    first = Loop(tmp_path / "run")
    with pytest.raises(holdfast.ConflictError, match=r"this very process .* ck\.close\(\)"):
        Loop(tmp_path / "run")
    first.ck.close()
    Loop(tmp_path / "run").ck.close()


def test_a_checkpointer_that_is_garbage_does_not_hold_its_run(tmp_path):
    loop = Loop(tmp_path / "run")
    loop.ck.resume()
    loop.run(range(2))
    loop.myself = loop  # as the traceback of a failed cell does
    del loop
    again = Loop(tmp_path / "run")
    assert again.ck.resume() == 2
    again.ck.close()


@pytest.mark.parametrize("number", [1.0, "1", None])
def test_numbers_are_whole(tmp_path, number):
    loop = Loop(tmp_path / "run")
    loop.ck.resume()
    with pytest.raises(TypeError, match="expected a whole number"):
        loop.run([number])
    loop.run([np.int64(3)])
    loop.ck.close()


def test_numbers_may_jump(tmp_path):
    """Step numbers may have large gaps, for example if they count samples.
    That must not take long."""
    trained(tmp_path / "run", [0, 10**12, 10**12 + 1, 2 * 10**15], every="1000 steps")
    assert saved_steps(tmp_path / "run") == [10**12, 2 * 10**15]


def test_the_end_is_saved_whether_it_is_known_or_not(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "holdfast"):
        trained(tmp_path / "known", range(5), total_steps=5)
        trained(tmp_path / "even", range(4))
        trained(tmp_path / "run", range(5))
    assert saved_steps(tmp_path / "known") == saved_steps(tmp_path / "run") == [1, 3, 4]
    assert saved_steps(tmp_path / "even") == [1, 3] and caplog.text == ""


def test_a_relative_path_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    loop, saver = Loop("run"), holdfast.Saver("~/run")
    loop.ck.resume()
    os.chdir("/")
    loop.run(range(2))
    loop.ck.close()
    saver.close()
    assert saved_steps(tmp_path / "run") == [1] and (tmp_path / "home" / "run").is_dir()


def test_a_resume_in_mid_run_finds_the_newest_save(tmp_path):
    loop = Loop(tmp_path / "run", every="1 steps")
    loop.ck.resume()
    loop.run(range(6))
    assert loop.ck.resume() == 6
    loop.ck.close()


def test_a_checkpoint_of_something_else_is_no_resume(tmp_path, caplog):
    trained(tmp_path / "run", range(2))
    model = nn.Sequential(nn.Linear(3, 3))
    ck = holdfast.Checkpointer(tmp_path / "run", model=model,
                               resuming=holdfast.Resuming(strict=False),
                               failures=holdfast.Failures(signals=False))
    with pytest.raises(ValueError, match="none of its tensors is one of the model's"):
        ck.resume()
    ck.close()


@pytest.mark.parametrize(("option", "value"), [("every", 5), ("every", None), ("keep", "3"),
                                               ("keep", 2.0)])
def test_options_of_another_type_are_named(tmp_path, option, value):
    with pytest.raises(TypeError, match=rf"{option}={value!r}; expected"):
        holdfast.Checkpointer(tmp_path, model=nn.Linear(1, 1), **{option: value})


@pytest.mark.parametrize(("option", "make", "message"), [
    ("optimizer", lambda m, o: torch.optim.lr_scheduler.StepLR(o, 1),
     r"optimizer: a torch\.optim\.lr_scheduler\.StepLR; expected a torch optimizer"),
    ("optimizer", lambda m, o: m.parameters(), "optimizer: a builtins.generator; expected a torch"),
    ("model", lambda m, o: torch.jit.script(m), "model: a TorchScript module; expected"),
    ("model", lambda m, o: {1: m}, "1: the key of a module or an optimizer; expected text"),
])
def test_objects_of_another_kind_are_named(tmp_path, option, make, message):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"model": model, "optimizer": optimizer, option: make(model, optimizer)}
    with pytest.raises(TypeError, match=message):
        holdfast.Checkpointer(tmp_path, **given)


def test_steps_and_losses_that_are_no_numbers_are_named(tmp_path):
    loop = Loop(tmp_path / "run")
    with pytest.raises(TypeError, match="step='10'; expected a whole number"):
        loop.ck.resume(step="10")
    loop.ck.resume()
    with pytest.raises(ValueError, match=f"step={2**63}; expected a number below 2"):
        loop.ck.save(2**63)
    loop.run([0])
    loop.model(torch.ones(2, 4)).sum().backward()
    loop.optimizer.step()
    with pytest.raises(TypeError, match=r"loss=array.*; expected a number, or a tensor"):
        loop.ck.step(1, loss=np.array([1.0, 2.0]))
    loop.ck.close()
