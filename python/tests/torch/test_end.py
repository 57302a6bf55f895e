"""close() saves the end of a training that ended well, and nothing else."""

import gc
import os
import signal
import time
import weakref
from types import SimpleNamespace

import pytest
import torch
from grouped import grouped
from ranks import RankError, run_ranks
from torch import nn
from torch.utils.data import DataLoader

import holdfast
from holdfast.torch.loop import unchanged_model


class Toy:
    def __init__(self, run, every="100 steps", **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.ck = holdfast.Checkpointer(run, model=self.model, optimizer=self.optimizer,
                                        every=every, **grouped(space_reserve=0, **options))
        self.start = self.ck.resume()

    def update(self):
        self.model(torch.rand(3, 2)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, steps):
        for step in steps:
            self.update()
            self.ck.step(step)
        return self


def steps_in(run):
    return sorted(int(path.name[5:]) for path in run.glob("step-*"))


def test_the_end_is_saved_and_resumed(tmp_path, caplog):
    toy = Toy(tmp_path / "run").train(range(5))
    toy.ck.close()
    assert steps_in(tmp_path / "run") == [4] and not caplog.records
    again = Toy(tmp_path / "run")
    assert again.start == 5
    for mine, theirs in zip(again.model.parameters(), toy.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    again.ck.close()
    assert steps_in(tmp_path / "run") == [4]  # nothing new to save


def test_a_validation_behind_the_loop_does_not_prevent_it(tmp_path):
    toy = Toy(tmp_path / "run").train(range(3))
    toy.model.eval()
    with torch.no_grad():
        toy.model(torch.rand(4, 2))
    toy.ck.close()
    assert steps_in(tmp_path / "run") == [2]


@pytest.mark.parametrize("size", [2, 1 << 20])  # copied at once, or in the background
def test_tensors_that_were_made_in_inference_mode_are_saved_too(tmp_path, size):
    toy = Toy(tmp_path / "run", every="1 steps")
    with torch.inference_mode():
        toy.model[0].register_buffer("cache", torch.full((size,), 3.0))
        toy.model[0].frozen = nn.Parameter(torch.full((size,), 5.0), requires_grad=False)
    toy.train(range(3)).ck.close()
    assert steps_in(tmp_path / "run") == [0, 1, 2]
    saved = holdfast.load(tmp_path / "run")
    assert saved["model.0.cache"].sum() == 3 * size and saved["model.0.frozen"].sum() == 5 * size


@pytest.mark.parametrize("change", [
    lambda toy: toy.model.load_state_dict({k: v + 1 for k, v in toy.model.state_dict().items()}),
    lambda toy: toy.update(),
    lambda toy: toy.model(torch.rand(4, 2)),  # in training mode, so running averages change
], ids=["best weights", "another update", "buffers"])
def test_a_model_that_has_changed_is_not_saved_as_the_last_step(tmp_path, caplog, change):
    toy = Toy(tmp_path / "run").train(range(3))
    change(toy)
    toy.ck.close()
    assert steps_in(tmp_path / "run") == []
    assert "the last step was 2" in caplog.text and "has changed since then" in caplog.text


def averages(model):
    return {name: p.detach() * 0.9 + 0.01 for name, p in model.named_parameters()}


def copy_in(toy):
    for name, value in averages(toy.model).items():
        toy.model.get_parameter(name).data.copy_(value)


def put_in(toy):
    for name, value in averages(toy.model).items():
        toy.model.get_parameter(name).data = value


def write_numpy(toy):
    toy.model[0].weight.detach().numpy()[:] = 7


def convert(toy):
    toy.model.to(torch.float64)


@pytest.mark.parametrize("change", [copy_in, put_in, write_numpy, convert])
def test_what_was_written_behind_torchs_back_is_named_and_not_saved(tmp_path, caplog, change):
    toy = Toy(tmp_path / "run").train(range(3))
    change(toy)
    toy.ck.close()
    assert steps_in(tmp_path / "run") == []
    assert "the model has changed since then (model.0.weight" in caplog.text


def copy_in_and_back(toy):
    kept = [p.detach().clone() for p in toy.model.parameters()]
    copy_in(toy)
    for p, value in zip(toy.model.parameters(), kept, strict=True):
        p.data.copy_(value)


def move_all(toy):
    """As model.cpu() does with a model on a GPU."""
    for tensor in [*toy.model.parameters(), *toy.model.buffers()]:
        tensor.data = tensor.data.clone()


@pytest.mark.parametrize("change", [copy_in_and_back, move_all])
def test_the_same_bits_in_the_same_or_other_memory_are_the_last_step(tmp_path, caplog, change):
    toy = Toy(tmp_path / "run").train(range(3))
    wanted = toy.model[0].weight.detach().clone()
    change(toy)
    toy.ck.close()
    assert steps_in(tmp_path / "run") == [2] and not caplog.records
    assert torch.equal(holdfast.load(tmp_path / "run")["model.0.weight"], wanted)


def test_averages_that_are_swapped_into_a_model_of_many_tensors_are_seen(tmp_path, caplog):
    """Only some of their elements are kept, others after each step."""
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(50)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ck = holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer,
                               every="100 steps", **grouped(space_reserve=0))
    ck.resume()
    for step in range(5):
        model(torch.rand(3, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        ck.step(step)
    assert ck._changes.changed_since(4) == ""
    for p in model.parameters():
        p.data.mul_(0.5)
    ck.close()
    assert steps_in(tmp_path / "run") == [] and "has changed since then" in caplog.text


def write_to_each_of_many(run, between, schedule=holdfast.Schedule()):
    """What is known of a write to each tensor of a large model alone, behind its last step."""
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(50)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = {}
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="100 steps", schedule=schedule,
                               **grouped(space_reserve=0)) as ck:
        ck.resume()
        for step in range(5):
            between(step)
            model(torch.rand(3, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            ck.step(step)
        for name, p in model.named_parameters():
            kept = p.detach().clone()
            p.data.mul_(0.5)
            said[name] = ck._changes.changed_since(4)
            p.data.copy_(kept)
        assert ck._changes.changed_since(4) == ""
    return said


@pytest.mark.parametrize(("between", "schedule"), [
    (lambda step: time.sleep(0.5 * (step == 4)), holdfast.Schedule()),
    (lambda step: None, holdfast.Schedule(total_steps=5)),
], ids=["a step that takes a while", "the step that is known to be the last one"])
def test_a_write_to_any_one_of_many_tensors_is_seen(tmp_path, between, schedule):
    said = write_to_each_of_many(tmp_path, between, schedule)
    assert len(said) == 100
    assert all(f"(model.{name})" in text for name, text in said.items()), said


@pytest.mark.parametrize(("look", "step", "is_whole"), [
    (40e-6, 0.009, True), (40e-6, 0.007, False),  # 300 tensors
    (400e-6, 0.9, True), (400e-6, 0.7, False),  # so many that 0.5 % of a step would be too much
])
def test_all_tensors_are_looked_at_after_all_but_very_short_steps(monkeypatch, look, step, is_whole):
    tensors = {f"{number}": torch.zeros(2) for number in range(100)}
    clock = [0.0]
    monkeypatch.setattr(unchanged_model, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    seen = unchanged_model.LastStep(lambda: tensors)
    seen.note(0)
    seen._seconds = look
    clock[0] = step
    seen.note(1)
    found = []
    for name, tensor in tensors.items():
        tensor.data[1] = 5
        found.append(name in seen.changed_since(1))
        tensor.data[1] = 0
    assert all(found) is is_whole and 8 <= sum(found)


def test_tensors_without_a_plain_memory_do_not_prevent_a_save_of_the_end(tmp_path, caplog):
    toy = Toy(tmp_path / "run")
    toy.model.register_buffer("empty", torch.empty(0))
    toy.model.register_buffer("turned", torch.rand(3, 4).t())
    toy.model.register_buffer("narrow", torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn))
    toy.model.register_buffer("complex", torch.ones(2, dtype=torch.complex64))
    toy.train(range(3)).ck.close()
    assert steps_in(tmp_path / "run") == [2] and not caplog.records


def test_nothing_is_saved_on_request_nor_after_an_exception(tmp_path, caplog):
    toy = Toy(tmp_path / "a").train(range(3))
    toy.ck.close(save=False)
    with pytest.raises(KeyError), Toy(tmp_path / "b").ck as ck:
        ck.step(0)
        raise KeyError
    toy = Toy(tmp_path / "c")
    with pytest.raises(KeyError):
        try:
            toy.train(range(3))
            raise KeyError
        finally:
            toy.ck.close()
    toy = Toy(tmp_path / "d", every="never").train(range(3))
    toy.ck.close()
    assert all(steps_in(tmp_path / name) == [] for name in "abcd")
    assert "close(save=False)" in caplog.text and "an exception has ended" in caplog.text
    assert 'every="never"' in caplog.text


def test_a_step_that_is_saved_is_not_written_again(tmp_path):
    toy = Toy(tmp_path / "run", every="3 steps").train(range(3))
    first = toy.ck.save(2).durable().folder
    second = toy.ck.save(2).durable().folder
    assert first == second
    events = (tmp_path / "run/events/rank-0000.jsonl").read_text()
    assert events.count("save_captured") == 1
    with torch.no_grad():
        toy.model[0].weight.add_(1)
    toy.ck.save(2).durable()  # the model has changed: this is another one
    toy.ck.close()
    events = (tmp_path / "run/events/rank-0000.jsonl").read_text()
    assert events.count("save_captured") == 2


def test_a_loop_that_only_calls_save_does_not_write_a_step_twice(tmp_path):
    toy = Toy(tmp_path / "run", every="never")
    toy.update()
    assert toy.ck.save(1).durable().folder == toy.ck.save(1).durable().folder
    toy.ck.close()
    assert (tmp_path / "run/events/rank-0000.jsonl").read_text().count("save_captured") == 1


def test_what_a_closed_checkpointer_held_goes_without_the_garbage_collector(tmp_path):
    """In a cycle of references, the memory of a model and the workers of a loader would stay."""
    model, data = nn.Linear(1, 1), DataLoader(torch.arange(6.0), 3)
    optimizer = torch.optim.AdamW(model.parameters())
    with holdfast.Checkpointer(tmp_path, model=model, optimizer=optimizer, data=data,
                               every="1 steps") as checkpointer:
        for step, batch in enumerate(data, checkpointer.resume()):
            model(batch[:, None]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            checkpointer.step(step)
    held = [weakref.ref(one) for one in (checkpointer, model, data, data.position)]
    gc.collect()  # of torch, which has cycles of its own
    gc.disable()
    try:
        del checkpointer, model, optimizer, data, batch
        assert [one() for one in held] == [None] * 4
    finally:
        gc.enable()


def all_ranks_end_well(rank, world, run):
    Toy(run).train(range(4)).ck.close()
    return steps_in(run)


def test_all_ranks_save_the_end_together(tmp_path):
    assert run_ranks(2, all_ranks_end_well, tmp_path / "run") == [[3], [3]]


def one_rank_fails(rank, world, run, how):
    toy = Toy(run, timeout=60.0).train(range(4))
    if rank == 1 and how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and how == "late":
        time.sleep(8)
    if rank == 1 and how == "unwilling":
        toy.ck.close(save=False)
        return 0.0
    start = time.monotonic()
    try:
        toy.ck.close()
    except (ConnectionError, OSError, RuntimeError):
        pass
    return time.monotonic() - start


@pytest.mark.parametrize("how", ["dies", "unwilling"])
def test_a_rank_that_is_gone_or_unwilling_means_no_save_within_seconds(tmp_path, how):
    start = time.monotonic()
    if how == "dies":
        with pytest.raises(RankError):
            run_ranks(2, one_rank_fails, tmp_path / "run", how)
    else:
        assert max(run_ranks(2, one_rank_fails, tmp_path / "run", how)) < 30
    assert time.monotonic() - start < 55
    assert steps_in(tmp_path / "run") == []


def test_a_late_rank_means_no_save_and_no_hang(tmp_path):
    first, second = run_ranks(2, one_rank_fails, tmp_path / "run", "late")
    assert steps_in(tmp_path / "run") == [] and max(first, second) < 45
