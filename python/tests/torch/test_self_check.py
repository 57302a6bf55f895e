"""Checkpointer.check(): what it says while a training runs, and that the training stays as it is."""

import pytest
import ranks
import torch
from torch import nn

import holdfast
from holdfast.torch.loop import self_check


def train(run, check_after=(), **options):
    """Seven steps with dropout. Returns their losses, and what check() said after some of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, said = [], []
    with holdfast.Checkpointer(run, model=model, optimizer=opt, every="1h", **options) as ck:
        for step in range(ck.resume(), 7):
            loss = model(torch.randn(8, 4)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            ck.step(step, loss=loss)
            losses.append(loss.item())
            if step in check_after:
                said.append(ck.check())
    return losses, said


def test_a_training_that_is_checked_twice_goes_on_with_the_same_bits(tmp_path):
    plain, _ = train(tmp_path / "plain")
    losses, said = train(tmp_path / "runs" / "checked", (2, 4))
    assert losses == plain
    assert [one.is_exact for one in said] == [True, True], said
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["checked"]


class Counter:
    def __init__(self):
        self.count = 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"] + 1


class Refuses(Counter):
    def load_state_dict(self, state):
        raise RuntimeError("not today")


@pytest.mark.parametrize("counter", [Counter(), Refuses()], ids=["changes it", "refuses it"])
def test_an_object_that_does_not_take_its_own_state_is_named(tmp_path, counter):
    _, (said,) = train(tmp_path / "run", (2,), objects={"counter": counter})
    assert said.differs == ["counter"] and "counter differ" in str(said)


def test_a_tensor_whose_bytes_come_back_different_is_named(tmp_path, monkeypatch):
    save_and_read = self_check._save_and_read

    def save_and_write_to_memory(folder, state, *others):
        saved = save_and_read(folder, state, *others)
        state.model_tensors()["model.0.bias"].data[2] += 1  # memory and file are two now
        return saved

    monkeypatch.setattr(self_check, "_save_and_read", save_and_write_to_memory)
    _, (said,) = train(tmp_path / "run", (2,))
    assert said.differs == ["model.0.bias"] and not said.is_exact
    assert "model.0.bias differ" in str(said)


def test_what_takes_part_and_was_not_given_is_listed_before_the_first_save(tmp_path):
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sched = torch.optim.lr_scheduler.StepLR(opt, 2)
    with holdfast.Checkpointer(tmp_path, model=model, optimizer=opt, every="1h") as ck:
        for step in range(ck.resume(), 4):
            model(torch.randn(8, 4)).sum().backward()
            opt.step()
            sched.step()
            ck.step(step)
        said = ck.check()
    assert not said.is_exact and not said.differs
    assert "not saved: scheduler: StepLR" in str(said) and "scheduler=" in str(said)


class Augmented(torch.utils.data.Dataset):
    def __init__(self):
        self.generator = torch.Generator()

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.rand(4, generator=self.generator)


def test_a_generator_that_workers_draw_from_is_listed(tmp_path):
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(Augmented(), batch_size=4, num_workers=1)
    with holdfast.Checkpointer(tmp_path, model=model, optimizer=opt, data=loader) as ck:
        for step, batch in enumerate(loader, ck.resume()):
            model(batch).sum().backward()
            opt.step()
            ck.step(step)
            if step == 2:
                break
        said = ck.check()
    assert not said.is_exact and "not saved: generator data.dataset.generator: " in str(said)


def check_on_rank(rank, world, run):
    return train(run, (2, 4))[1]


def test_replicas_that_another_rank_saves_are_equal(tmp_path):
    for said in ranks.run_ranks(2, check_on_rank, tmp_path / "run"):
        assert [one.is_exact for one in said] == [True, True], said


def check_without_room(rank, world, run):
    def no_room(**_):
        raise OSError(28, "No space left on device")

    if rank == 0:
        self_check.tempfile.mkdtemp = no_room
    with pytest.raises(OSError, match="No space left"):
        train(run, (2,))


def test_a_folder_without_room_is_an_error_of_all_ranks(tmp_path):
    ranks.run_ranks(2, check_without_room, tmp_path / "run", timeout=30)
