"""Ctrl-C in a training script: the first one saves at the next step, a second one ends at once."""

import os
import signal

from command import saved_steps
import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast
from holdfast.torch.loop import ctrl_c


class Loop:
    def __init__(self, run, **options):
        torch.manual_seed(0)
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.ck = holdfast.Checkpointer(run, model=self.model, optimizer=self.optimizer,
                                        every="1000 steps", **options)
        self.start = self.ck.resume()

    def train(self):
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()

    def run(self, numbers):
        for number in numbers:
            self.train()
            self.ck.step(number)


def press():
    """Presses Ctrl-C. An interruption in the wrong place must not end the tests themselves."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return "interrupted"
    return "noted"


@pytest.fixture(autouse=True)
def usual_handler():
    """Leaves the handler of the tests as it was, also if a test fails."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_ctrl_c_saves_at_the_next_step(tmp_path, capfd):
    loop = Loop(tmp_path)
    loop.run(range(3))
    assert press() == "noted"
    assert "the next ck.step() saves and then ends the training" in capfd.readouterr().err
    with pytest.raises(KeyboardInterrupt, match="step 3 is kept"):
        loop.run([3])
    assert saved_steps(tmp_path) == [3]
    expected = loop.model.weight.clone()
    loop.ck.close()
    again = Loop(tmp_path)
    assert again.start == 4 and torch.equal(again.model.weight, expected)
    again.ck.close()


def test_a_second_ctrl_c_ends_at_once_and_saves_nothing(tmp_path):
    loop = Loop(tmp_path)
    loop.run(range(3))
    assert [press(), press()] == ["noted", "interrupted"]
    loop.ck.leave(KeyboardInterrupt())
    assert saved_steps(tmp_path) == []


def test_ctrl_c_before_the_first_step_and_after_the_end_is_as_usual(tmp_path):
    loop = Loop(tmp_path)
    assert press() == "interrupted"
    loop.run(range(2))
    loop.ck.close()
    assert press() == "interrupted"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_script_that_catches_it_may_save_and_go_on(tmp_path):
    loop = Loop(tmp_path)
    loop.run(range(2))
    press()
    with pytest.raises(KeyboardInterrupt):
        loop.run([2])
    loop.ck.save(2).durable()  # as scripts do in `except KeyboardInterrupt`
    loop.run(range(3, 5))
    assert press() == "noted"  # it is a first one again
    with pytest.raises(KeyboardInterrupt, match="step 5 is kept"):
        loop.run([5])
    loop.ck.close()
    assert saved_steps(tmp_path) == [2, 5]


def test_close_saves_the_end_before_ctrl_c_takes_effect(tmp_path):
    loop = Loop(tmp_path)
    loop.run(range(3))
    assert press() == "noted"  # in a long validation, say
    with pytest.raises(KeyboardInterrupt):
        loop.ck.close()
    assert saved_steps(tmp_path) == [2]


def test_such_an_end_is_no_failure(tmp_path):
    loop = Loop(tmp_path)
    with pytest.raises(KeyboardInterrupt), loop.ck:
        loop.run([0])
        press()
        loop.run([1])
    assert "job_closed" in (tmp_path / "events" / "rank-0000.jsonl").read_text()


@pytest.mark.parametrize("whose", ["own", "none wanted", "ignored"])
def test_other_handlers_are_left_alone(tmp_path, whose):
    seen = []
    options = {}
    if whose == "none wanted":
        options["failures"] = holdfast.Failures(signals=False)
    else:
        signal.signal(signal.SIGINT,
                      signal.SIG_IGN if whose == "ignored" else lambda *_: seen.append(1))
    before = signal.getsignal(signal.SIGINT)
    loop = Loop(tmp_path, **options)
    assert signal.getsignal(signal.SIGINT) is before
    loop.run(range(2))
    if whose != "none wanted":
        assert press() == "noted"
    loop.run([2])
    loop.ck.close()
    assert signal.getsignal(signal.SIGINT) is before and seen == [1] * (whose == "own")


def test_notebooks_keep_their_ctrl_c(tmp_path, monkeypatch):
    monkeypatch.setattr(ctrl_c, "_is_interactive", lambda: True)
    loop = Loop(tmp_path)
    loop.run(range(2))
    assert press() == "interrupted"
    loop.ck.close()


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, number):
        if number == 3:
            os.kill(os.getpid(), signal.SIGINT)  # the terminal sends it to workers, too
        return torch.full((4,), float(number))


def test_loader_workers_outlive_the_first_ctrl_c(tmp_path):
    loop = Loop(tmp_path)
    loader = torch.utils.data.DataLoader(Squares(), batch_size=1, num_workers=1)
    assert [int(batch[0, 0]) for batch in loader] == list(range(8))
    loop.ck.close()


def stop(rank, world, run):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ck = holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1000 steps")
    ck.resume()
    step = 0
    try:
        while True:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank == 1 and step == 3:
                os.kill(os.getpid(), signal.SIGINT)
            ck.step(step)
            step += 1
    except SystemExit as end:
        return step, end.code
    except KeyboardInterrupt:
        return step, "interrupted"


def test_ctrl_c_to_one_rank_stops_all_at_the_same_step(tmp_path):
    (step, code), (other, how) = run_ranks(2, stop, str(tmp_path))
    assert (step, code, how) == (other, 143, "interrupted")
    assert saved_steps(tmp_path) == [step]
