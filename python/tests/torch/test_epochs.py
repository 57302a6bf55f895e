"""Loops over epochs: the code after an epoch's `for`, and set_epoch(), work after restarts, too."""

import itertools
import random

import pytest
import torch
from long_tests import IS_LONG, first_of
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
)

import holdfast
from holdfast.data import loader, resumable

# After a restart, the scheduler's step may come before the first update. torch warns of that.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")

EPOCHS = 3
SAMPLES = 9


class Noisy(torch.utils.data.Dataset):
    """Samples with noise that is drawn when they are read. The first value is the index."""

    def __init__(self, samples=SAMPLES):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return torch.cat([torch.tensor([float(index)]), torch.rand(2) + random.random()])


class Shuffled(Sampler):
    """A user's own batch sampler: batches of 3, shuffled by epoch. It has no attribute `epoch`."""

    def __init__(self):
        self._number = 0

    def set_epoch(self, epoch):
        self._number = epoch

    def __len__(self):
        return SAMPLES // 3

    def __iter__(self):
        order = list(range(SAMPLES))
        random.Random(self._number).shuffle(order)
        return (order[at : at + 3] for at in range(0, SAMPLES, 3))


def _distributed(**options):
    sampler = DistributedSampler(Noisy(), 1, 0, seed=5)
    return resumable(DataLoader(Noisy(), 3, sampler=sampler, **options)), sampler


def _plain_distributed():
    sampler = DistributedSampler(Noisy(), 1, 0, seed=5)
    return DataLoader(Noisy(), 3, sampler=sampler), sampler


def _in_batches():
    sampler = DistributedSampler(Noisy(), 1, 0, seed=5)
    batches = BatchSampler(sampler, 3, drop_last=False)
    return resumable(DataLoader(Noisy(), batch_sampler=batches)), sampler


def _own_batches():
    sampler = Shuffled()
    return resumable(DataLoader(Noisy(), batch_sampler=sampler)), sampler


def _own_generator():
    own = torch.Generator().manual_seed(3)
    sampler = RandomSampler(Noisy(), generator=own)  # draws once more at the end of an epoch
    return resumable(DataLoader(Noisy(), 3, sampler=sampler, generator=own)), None


KINDS = {
    "distributed": _distributed,
    "kept workers": lambda: _distributed(num_workers=1, persistent_workers=True),
    "in batches": _in_batches,
    "own batches": _own_batches,
    "random": lambda: (resumable(DataLoader(Noisy(), 3, shuffle=True)), None),
    "own generator": _own_generator,
    "plain": lambda: (DataLoader(Noisy(), 3, shuffle=True), None),
    "plain with workers": lambda: (DataLoader(Noisy(), 3, shuffle=True, num_workers=1), None),
    "plain distributed": _plain_distributed,
    "sequence": lambda: (loader(Noisy(), 3, seed=1, epochs="each"), None),
    "short": lambda: (loader(Noisy(8), 3, seed=1, epochs="each"), None),
    "drop": lambda: (loader(Noisy(11), 3, seed=1, epochs="each", last="drop"), None),
}
# Each takes seconds, as each of their steps is stopped once. The others run with HOLDFAST_LONG=1.
MOST_UNLIKE = ["kept workers", "plain distributed", "drop"]


class Stop(Exception):
    pass


class Training:
    """The objects that a training script makes when it starts."""

    def __init__(self, kind, seed):
        torch.manual_seed(seed)
        random.seed(seed)
        self.model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.3), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
        self.loader, self.sampler = KINDS[kind]()
        self.log = []

    def set_epoch(self, epoch):
        sampler = self.sampler or self.loader.sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)

    def update(self, batch):
        loss = self.model(batch[:, 1:]).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.log.append((batch[:, 0].tolist(), loss.item().hex()))

    def end_epoch(self, epoch):
        """Makes a scheduler step and a validation, whose loader draws from torch's generator."""
        self.scheduler.step()
        numbers = [batch.tolist() for batch in DataLoader(range(5), shuffle=True)]
        self.log.append((epoch, self.optimizer.param_groups[0]["lr"], numbers))

    def done(self):
        return self.log, [parameter.tolist() for parameter in self.model.parameters()]

    def run(self, folder, loop, stop=None):
        with holdfast.Checkpointer(folder, model=self.model, optimizer=self.optimizer,
                                   scheduler=self.scheduler, data=self.loader, every="1 steps",
                                   keep=2,
                                   writing=holdfast.Writing(space_reserve=0)) as checkpointer:
            start = checkpointer.resume()

            def save(step):
                checkpointer.step(step)
                if step == stop:
                    raise Stop

            try:
                loop(self, start, save)
            except Stop:
                pass
        return self.done()


def by_the_loader(training, step, save):
    for epoch in range(training.loader.epoch, EPOCHS):
        training.set_epoch(epoch)
        for batch in training.loader:
            training.update(batch)
            save(step)
            step += 1
        training.end_epoch(epoch)


def without_numbers(training, step, save):
    """A loop that uses the epoch's number only for its sampler."""
    while True:
        training.set_epoch(training.loader.epoch)
        for batch in training.loader:
            training.update(batch)
            save(step)
            step += 1
        training.end_epoch(None)
        if step == EPOCHS * len(training.loader):
            return


def one_pass(training, step, save):
    for step, batch in enumerate(training.loader, step):
        training.update(batch)
        save(step)


def by_steps(training, step, save):
    """A loop that computes the epoch from the step, and tells only the sampler that it begins."""
    for epoch in range(step // len(training.loader), EPOCHS):
        training.set_epoch(epoch)
        for batch in training.loader:
            training.update(batch)
            save(step)
            step += 1


def check_every_stop(tmp_path, kind, loop):
    whole, weights = Training(kind, 0).run(tmp_path / "whole", loop)
    steps = sum(isinstance(line[0], list) for line in whole)
    assert steps >= 3
    for stop in range(steps):
        folder = tmp_path / f"stop {stop}"
        before, _ = Training(kind, 0).run(folder, loop, stop)
        after, last = Training(kind, 1).run(folder, loop)
        assert before + after == whole, f"stopped at step {stop}"
        assert last == weights


@pytest.mark.parametrize("kind", KINDS if IS_LONG else MOST_UNLIKE)
def test_a_stop_at_any_step_loses_no_batch_and_no_end_of_an_epoch(tmp_path, kind):
    check_every_stop(tmp_path, kind, by_the_loader)


@pytest.mark.parametrize("kind", first_of(["random", "distributed", "drop"], 1))
def test_loops_that_never_look_at_epochs_have_their_ends_too(tmp_path, kind):
    check_every_stop(tmp_path, kind, without_numbers)


@pytest.mark.parametrize("kind", first_of(["short", "random", "sequence"], 1))
def test_one_pass_that_had_ended_has_no_batch_more(tmp_path, kind):
    check_every_stop(tmp_path, kind, one_pass)


@pytest.mark.parametrize("kind", first_of(["distributed", "own generator", "in batches", "drop"], 1))
def test_a_sampler_that_is_told_the_next_epoch_begins_it(tmp_path, kind):
    check_every_stop(tmp_path, kind, by_steps)


@pytest.mark.parametrize("kind", ["random", "sequence", "short", "drop"])
def test_an_epoch_is_under_way_until_its_loop_ends(kind):
    one, _ = KINDS[kind]()
    for batch in range(1, len(one) + 1):
        batches = iter(one)
        for _ in itertools.islice(batches, batch):
            assert one.epoch == 0
        two, _ = KINDS[kind]()
        two.load_state_dict(one.state_dict())
        assert two.epoch == 0 and len(list(two)) == len(one) - batch
        assert two.epoch == 1 and len(list(two)) == len(one)
        assert two.epoch == 2
        one, _ = KINDS[kind]()
    for epoch in range(3):
        assert one.epoch == epoch
        assert len(list(one)) == len(one)
    two, _ = KINDS[kind]()
    two.load_state_dict(one.state_dict())
    assert two.epoch == 3 and len(list(two)) == len(one)


@pytest.mark.parametrize("kind", ["random", "sequence", "drop"])
def test_a_loop_that_is_left_at_its_end_is_followed_by_the_next_epoch(kind):
    one, _ = KINDS[kind]()
    for epoch in range(3):
        assert len([*zip(range(len(one)), one, strict=False)]) == len(one)
        assert one.epoch == epoch


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("kind", ["random", "sequence", "drop"])
def test_a_trainer_may_say_to_the_loader_that_the_next_epoch_begins(kind, begun):
    one, _ = KINDS[kind]()
    batches = iter(one)
    for _ in range(len(one)):
        next(batches)
    for epoch, left in ((0, 0), (1, len(one))):
        two, _ = KINDS[kind]()
        two.load_state_dict(one.state_dict())
        if begun:  # like Lightning, which makes the iterator first
            batches = iter(two)
            two.sampler.set_epoch(epoch)
        else:
            two.sampler.set_epoch(epoch)
            batches = iter(two)
        assert len(list(batches)) == left
        assert two.epoch == epoch + 1


def test_over_epochs_a_sampler_without_a_number_to_show_is_told_it_again():
    def made():
        return resumable(DataLoader(range(SAMPLES), batch_sampler=Shuffled()), epochs=EPOCHS)

    whole = [batch.tolist() for batch in made()]
    for stop in range(1, len(whole)):
        one, two = made(), made()
        batches = iter(one)
        seen = [next(batches).tolist() for _ in range(stop)]
        two.load_state_dict(one.state_dict())
        assert seen + [batch.tolist() for batch in two] == whole


def test_a_position_that_was_saved_without_its_loop_is_still_taken():
    one = loader(range(10), 5, epochs="each")
    state = {key: value for key, value in one.state_dict().items() if key != "open"}
    one.load_state_dict(state | {"cursor": 10})
    assert one.epoch == 1 and len(list(one)) == 2
