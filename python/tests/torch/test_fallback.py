"""If a resume skips a damaged step, everything is restored from the same older step."""

import logging

from grouped import grouped
import pytest
import torch
from ranks import run_ranks
from torch import nn

import holdfast


class Training:
    def __init__(self, run, seed=0, **options):
        torch.manual_seed(seed)
        self.model = nn.Linear(64, 64)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1.0)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.ck = holdfast.Checkpointer(run, model=self.model, optimizer=self.optimizer,
                                        scheduler=self.scheduler, every="1000 steps",
                                        **grouped(signals=False, space_reserve=0, **options))

    def update(self):
        self.model(torch.rand(2, 64)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()

    def state(self):
        slots = self.optimizer.state.get(self.model.weight, {})
        return {"weight": self.model.weight.tolist(), "lr": self.optimizer.param_groups[0]["lr"],
                "epochs": self.scheduler.last_epoch, "random": torch.get_rng_state().tolist(),
                "slots": {name: slot.tolist() for name, slot in slots.items()}}


def damage(run, step, rank=0):
    """Flips one bit of a tensor, which only a reader of that tensor can notice."""
    path = next(run.glob(f"step-*{step}")) / f"rank-000{rank}.safetensors"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def saved_steps(run, steps, first_without_update=False):
    training = Training(run)
    training.ck.resume()
    states = []
    for step in range(steps):
        if step or not first_without_update:
            training.update()
        states.append(training.state())
        training.ck.save(step).durable()
    training.ck.close()
    return states


@pytest.mark.parametrize("verify", ["fast", "full"])
def test_all_of_it_is_of_the_older_step(tmp_path, verify, caplog):
    states = saved_steps(tmp_path / "run", 3)
    damage(tmp_path / "run", 2)
    again = Training(tmp_path / "run", seed=1, verify=verify)
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert again.ck.resume() == 2
    assert again.state() == states[1]
    [(folder, why)] = again.ck.report.skipped
    assert folder.startswith("step-00000002") and "crc" in why
    assert f"{folder} is passed over" in caplog.text
    again.ck.close()


def test_slots_of_the_newer_step_are_gone(tmp_path):
    states = saved_steps(tmp_path / "run", 2, first_without_update=True)
    damage(tmp_path / "run", 1)
    again = Training(tmp_path / "run", seed=1)
    assert again.ck.resume() == 1
    assert again.state() == states[0] and states[0]["slots"] == {}
    again.update()
    again.ck.close()


def test_the_copy_in_a_tier_takes_the_place_of_a_damaged_step(tmp_path):
    training = Training(tmp_path / "run", tiers=[tmp_path / "copies"])
    training.ck.resume()
    training.update()
    training.ck.save(0).durable()
    want = training.state()
    training.ck.close()
    damage(tmp_path / "run", 0)
    again = Training(tmp_path / "run", seed=1, tiers=[tmp_path / "copies"])
    assert again.ck.resume() == 1
    assert again.state() == want
    again.ck.close()


def on_two_ranks(rank, world, folder):
    training = Training(f"{folder}/run")
    training.ck.resume()
    states = []
    for step in range(3):
        training.update()
        states.append(training.state())
        training.ck.save(step).durable()
    training.ck.close()
    return states


def and_again(rank, world, folder):
    again = Training(f"{folder}/run", seed=1)
    assert again.ck.resume() == 2
    again.ck.close()
    return again.state()


def test_damage_on_one_rank_sends_all_back(tmp_path):
    states = run_ranks(2, on_two_ranks, str(tmp_path))
    damage(tmp_path / "run", 2, rank=1)
    assert run_ranks(2, and_again, str(tmp_path)) == [one[1] for one in states]


def one_has_no_room(rank, world, folder):
    first = Training(f"{folder}/run")
    first.ck.resume()
    first.update()
    first.ck.save(0).durable()
    first.ck.close()
    again = Training(f"{folder}/run")
    if rank == 1:
        again.ck._state.allocate = lambda found: 1 / 0
    with pytest.raises((ZeroDivisionError, ValueError)) as caught:
        again.ck.resume()
    return f"{caught.type.__name__}: {caught.value}"


def test_a_rank_without_room_ends_the_resume_of_all(tmp_path):
    assert run_ranks(3, one_has_no_room, str(tmp_path)) == [
        "ValueError: rank 1: division by zero", "ZeroDivisionError: division by zero",
        "ValueError: rank 1: division by zero"]
