"""Loops over data that people write: stopped after any step, they go on with the same bits.

Each training is stopped after one of its steps and goes on in new objects, whose generators have
other states at first.
"""

import contextlib
import itertools
import random
import weakref

import numpy
import pytest
import torch
from long_tests import first_of
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Sampler

import holdfast
from holdfast.data import loader, resumable

STEPS = 11
STOPS = (0, 3, 4, 5, 8)  # in the middle of an epoch, at its last batches, behind its end


class Numbers(torch.utils.data.Dataset):
    """Numbers, with noise from torch's generator if `noisy`."""

    def __init__(self, samples=10, noisy=False):
        self.samples, self.noisy = samples, noisy

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        noise = torch.rand(()) if self.noisy else torch.zeros(())
        return torch.tensor([float(index), 1.0]) + noise


class Stop(Exception):
    pass


class Training:
    """The objects that a training script makes when it starts."""

    def __init__(self, data, seed):
        torch.manual_seed(seed), random.seed(seed), numpy.random.seed(seed)
        self.model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.3), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.data = data()
        self.log = []

    def update(self, *batches):
        loss = sum(self.model(batch / 10).pow(2).mean() for batch in batches)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.log.append(([batch.tolist() for batch in batches], loss.item().hex()))

    def validate(self, loader):
        """Not under no_grad: nothing but the missing update shows that it is no training."""
        self.model.eval()
        assert len([self.model(batch / 10) for batch in loader]) == len(loader)
        self.model.train()

    def run(self, folder, loop, stop=None):
        with holdfast.Checkpointer(folder, model=self.model, optimizer=self.optimizer,
                                   data=self.data, every="1 steps", keep=2,
                                   writing=holdfast.Writing(space_reserve=0)) as ck:
            start = ck.resume()

            def save(step):
                ck.step(step)
                if step in (stop, STEPS - 1):
                    raise Stop

            try:
                loop(self, start, save)
            except Stop:
                pass
        return self.log


def check_stops(tmp_path, data, loop, stops=STOPS):
    whole = Training(data, 0).run(tmp_path / "whole", loop)
    assert len(whole) == STEPS
    for stop in stops:
        log = Training(data, 0).run(tmp_path / f"{stop}", loop, stop)
        log += Training(data, 1).run(tmp_path / f"{stop}", loop)
        assert log == whole, f"stopped at step {stop}"
    return whole


def plain(samples=10, noisy=False, **options):
    return lambda: DataLoader(Numbers(samples, noisy), 2, shuffle=True, **options)


def own_generator():
    return DataLoader(Numbers(), 2, shuffle=True, generator=torch.Generator().manual_seed(3))


def in_epochs(training, step, save):
    for _ in range(training.data.epoch, 3):
        for batch in training.data:
            training.update(batch)
            save(step)
            step += 1
        training.validate(training.data)


def validating_inside(training, step, save):
    for _ in range(training.data.epoch, 9):
        for batch in training.data:
            training.update(batch)
            if step % 3 == 0:
                training.validate(training.data)
            save(step)
            step += 1


def taking_first(training, step, save):
    while True:
        training.update(next(iter(training.data)))
        save(step)
        step += 1


def taking_first_and_validating(training, step, save):
    while True:
        training.update(next(iter(training.data)))
        if step % 4 == 0:
            training.validate(training.data)
        save(step)
        step += 1


def cycling(training, step, save):
    for step, batch in enumerate(itertools.cycle(training.data), step):
        training.update(batch)
        save(step)


def cycling_in_a_map(training, step, save):
    doubled = map(torch.clone, training.data)
    for step, batch in enumerate(itertools.cycle(doubled), step):
        training.update(batch)
        save(step)


def cycling_by_two(training, step, save):
    batches = itertools.cycle(training.data)
    while True:
        training.update(next(batches), next(batches))
        save(step)
        step += 1


def cycling_and_validating(training, step, save):
    for step, batch in enumerate(itertools.cycle(training.data), step):
        training.update(batch)
        if step % 3 == 1:
            training.validate(training.data)
        save(step)


@pytest.mark.parametrize("loop", [in_epochs, validating_inside, taking_first,
                                  taking_first_and_validating])
@pytest.mark.parametrize("data", first_of([plain(noisy=True), plain(), own_generator], 1),
                         ids=["noisy", "shuffled", "own generator"])
def test_passes_that_only_validate_change_nothing(tmp_path, data, loop):
    check_stops(tmp_path, data, loop)


@pytest.mark.parametrize("loop", first_of([cycling, cycling_and_validating, cycling_in_a_map,
                                           cycling_by_two], 2))
def test_a_cycle_goes_on_with_the_batches_of_its_first_epoch(tmp_path, loop):
    whole = check_stops(tmp_path, plain(), loop)
    batches = [batch for batches, _ in whole for batch in batches]
    assert batches[5:] == batches[: len(batches) - 5]


def test_a_cycle_is_resumed_again_and_again(tmp_path):
    whole = Training(plain(), 0).run(tmp_path / "whole", cycling)
    log = []
    for life, stop in enumerate((1, 3, 4, 7, 8, None)):
        log += Training(plain(), life).run(tmp_path / "stopped", cycling, stop)
    assert log == whole


def test_in_workers_also_a_cycle_of_noisy_batches_is_repeated(tmp_path):
    data = plain(noisy=True, num_workers=1)
    check_stops(tmp_path, data, cycling, stops=[2, 8])


def test_a_cycle_of_noisy_batches_is_refused(tmp_path):
    data = plain(noisy=True)
    Training(data, 0).run(tmp_path, cycling, 7)
    with pytest.raises(ValueError, match="itertools.cycle has kept .* expected num_workers=1"):
        Training(data, 1).run(tmp_path, cycling)


def test_a_cycle_from_which_steps_take_different_numbers_of_batches_is_told(tmp_path, caplog):
    def irregular(training, step, save):
        batches = itertools.cycle(training.data)
        while True:
            training.update(*itertools.islice(batches, 1 + step % 2))
            save(step)
            step += 1

    Training(plain(), 0).run(tmp_path, irregular)
    assert "steps have read different numbers of batches" in caplog.text


def test_batches_that_the_training_keeps_itself_are_told(tmp_path, caplog):
    def loop(training, step, save):
        batches = list(training.data)
        while True:
            training.update(batches[step % len(batches)])
            save(step)
            step += 1

    Training(plain(), 0).run(tmp_path, loop)
    assert "steps are made without a batch from the loader" in caplog.text


def test_an_epoch_whose_validation_comes_first_is_resumed_by_the_training(tmp_path):
    def loop(training, step, save):
        for _ in range(training.data.epoch, 9):
            with torch.no_grad():
                training.validate(training.data)  # sees the whole epoch, also after a restart
            for batch in training.data:
                training.update(batch)
                save(step)
                step += 1

    check_stops(tmp_path, plain(), loop)


def test_a_training_that_ends_with_a_break_can_be_made_longer(tmp_path):
    def until(end):
        def loop(training, step, save):
            for batch in training.data:
                if step == end:
                    break
                training.update(batch)
                save(step)
                step += 1
        return loop

    def run(folder, seed, end):
        training = Training(plain(40), seed)
        with holdfast.Checkpointer(tmp_path / folder, model=training.model,
                                   optimizer=training.optimizer, data=training.data,
                                   every="9 steps") as ck:
            until(end)(training, ck.resume(), ck.step)
        return training.log

    assert run("cut", 0, 4) + run("cut", 1, 8) == run("whole", 0, 8)


def test_updates_by_hand_train_as_well(tmp_path):
    class ByHand(Training):
        def update(self, batch):
            loss = self.model(batch / 10).pow(2).mean()
            loss.backward()
            with torch.no_grad():
                for one in self.model.parameters():
                    one -= 0.1 * one.grad
            self.model.zero_grad()
            self.log.append(loss.item().hex())

    def run(folder, seed, stop):
        training = ByHand(plain(), seed)
        with holdfast.Checkpointer(tmp_path / folder, model=training.model, data=training.data,
                                   every="1 steps") as ck:
            ck.resume()
            for epoch in range(training.data.epoch, stop):
                for batch in training.data:
                    training.update(batch)
                ck.step(epoch)
        return training.log

    whole = run("whole", 0, 4)
    assert run("cut", 0, 2) + run("cut", 1, 4) == whole and len(whole) == 20


def test_a_loader_of_holdfast_does_not_count_a_validation(tmp_path):
    check_stops(tmp_path, lambda: loader(Numbers(), 2, seed=3, epochs="each"), in_epochs)


# Epochs that are left early


def leaving_by_step(training, step, save):
    for _ in range(training.data.epoch, 9):
        for batch in training.data:
            training.update(batch)
            save(step)
            step += 1
            if step % 3 == 0:
                break


def leaving_by_count(training, step, save):
    for _ in range(training.data.epoch, 9):
        for number, batch in enumerate(training.data):
            if number == 3:
                break
            training.update(batch)
            save(step)
            step += 1


def leaving_by_position(training, step, save):
    for _ in range(training.data.epoch, 9):
        for number, batch in enumerate(training.data, training.data.batch):
            if number == 3:
                break
            training.update(batch)
            save(step)
            step += 1


@pytest.mark.parametrize("loop", [leaving_by_step, leaving_by_count])
@pytest.mark.parametrize("noisy", [False, True])
def test_an_epoch_ends_where_the_one_before_was_left(tmp_path, loop, noisy):
    check_stops(tmp_path, plain(noisy=noisy), loop, stops=(3, 4, 5, 7))


def test_a_loop_that_asks_for_the_position_is_exact_from_the_first_epoch_on(tmp_path, caplog):
    check_stops(tmp_path, plain(noisy=True), leaving_by_position)
    assert not caplog.text


def test_a_loop_that_counts_from_zero_again_in_the_first_epoch_is_told(tmp_path, caplog):
    Training(plain(), 0).run(tmp_path, leaving_by_count, 0)
    Training(plain(), 1).run(tmp_path, leaving_by_count)
    assert "begins with 0 (`if number == 3` of line" in caplog.messages[0]
    assert "resumed after its batch 1, so" in caplog.messages[0]
    assert "resumed after its batch 1 ended after batch 5" in caplog.text
    assert "expected `for i, batch in enumerate(loader, loader.batch)`" in caplog.text


def leaving_by_slice(training, step, save):
    for _ in range(training.data.epoch, 9):
        for batch in itertools.islice(training.data, 3):
            training.update(batch)
            save(step)
            step += 1


def leaving_by_range(training, step, save):
    for _ in range(training.data.epoch, 9):
        for _, batch in zip(range(3), training.data):
            training.update(batch)
            save(step)
            step += 1


@pytest.mark.parametrize(("loop", "count"), [(leaving_by_slice, "itertools.islice"),
                                             (leaving_by_range, "zip with a range")])
def test_a_slice_that_counts_from_zero_again_in_the_first_epoch_is_told(tmp_path, caplog, loop, count):
    Training(plain(), 0).run(tmp_path, loop, 0)
    Training(plain(), 1).run(tmp_path, loop)
    assert f"begins with 0 ({count}), and this epoch is resumed after its batch 1" in caplog.text


def counting_for_a_log(training, step, save):
    for _ in range(training.data.epoch, 9):
        for number, batch in enumerate(training.data):
            training.update(batch)
            if number % 3 == 0:
                training.validate([batch])
            save(step)
            step += 1


def test_a_count_that_no_loop_is_left_by_is_no_matter(tmp_path, caplog):
    check_stops(tmp_path, plain(), counting_for_a_log, stops=(0, 3))
    assert not caplog.messages


def leaving_and_validating(training, step, save):
    for _ in range(training.data.epoch, 9):
        for number, batch in enumerate(training.data):
            if number == 3:
                break
            training.update(batch)
            save(step)
            step += 1
        with torch.no_grad():
            training.validate(training.data)


@pytest.mark.parametrize("loop", [leaving_by_step, leaving_by_count, leaving_by_slice, leaving_by_range,
                                  leaving_and_validating])
@pytest.mark.parametrize("saved", [1, 2])
def test_a_first_epoch_that_a_killed_life_has_left_ends_there_again(tmp_path, caplog, loop, saved):
    """The newest checkpoint is of the first epoch, and the life was killed in the second one."""
    def live(folder, seed, kill):
        training = Training(plain(noisy=True), seed)
        ck = holdfast.Checkpointer(folder, model=training.model, optimizer=training.optimizer,
                                   data=training.data, every="never",
                                   writing=holdfast.Writing(space_reserve=0))

        def save(step):
            ck.step(step)
            if kill and step == saved:
                ck.save(step)
            if step == (3 if kill else STEPS - 1):
                raise Stop

        with contextlib.suppress(Stop):
            loop(training, ck.resume(), save)
        ck.close(save=False)
        return training.log

    whole = live(tmp_path / "whole", 0, kill=False)
    first = live(tmp_path / "killed", 0, kill=True)
    assert first[:saved + 1] + live(tmp_path / "killed", 1, kill=False) == whole
    assert "data:" not in caplog.text


def test_an_epoch_that_no_other_follows_is_not_kept_as_left(tmp_path):
    seen = []

    def loop(training, step, save):
        for batch in training.data:
            training.update(batch)
            save(step)
            step += 1
            if step == 3:
                break
        training.validate(training.data)  # with gradients, as if it were the next epoch
        seen.extend(tmp_path.glob("events/*epoch*"))

    Training(plain(40), 0).run(tmp_path, loop)
    assert seen and not list(tmp_path.glob("events/*epoch*"))


# Loops that do not count epochs by the loader


def test_a_step_past_the_last_one_is_refused(tmp_path):
    training = Training(plain(), 0)
    with holdfast.Checkpointer(tmp_path, model=training.model, optimizer=training.optimizer,
                               schedule=holdfast.Schedule(total_steps=2)) as ck:
        ck.resume()
        for step in range(2):
            ck.step(step)
        with pytest.raises(ValueError, match=r"step 2, and Schedule\(total_steps=2\) says that 1"):
            ck.step(2)


def test_a_sampler_that_is_told_epoch_0_again_is_refused(tmp_path):
    def data():
        sampler = DistributedSampler(Numbers(), 1, 0)
        return DataLoader(Numbers(), 2, sampler=sampler)

    def from_zero(training, step, save):
        for epoch in range(9):
            training.data.sampler.set_epoch(epoch)
            for batch in training.data:
                training.update(batch)
                save(step)
                step += 1

    Training(data, 0).run(tmp_path, from_zero, 7)
    with pytest.raises(ValueError, match=r"set_epoch\(0\) after a resume in epoch 1; expected"):
        Training(data, 1).run(tmp_path, from_zero)


def test_steps_without_a_batch_of_the_loader_are_told_once(tmp_path, caplog):
    def loop(training, step, save):
        batch = torch.rand(2, 2)
        while True:
            training.update(batch)
            save(step)
            step += 1

    Training(plain(), 0).run(tmp_path, loop)
    assert caplog.text.count("steps are made without a batch from the loader") == 1


# Several loaders


def zipped(training, step, save):
    first, second = training.data
    for _ in range(first.epoch, 9):
        for pair in zip(first, second, strict=False):
            training.update(*pair)
            save(step)
            step += 1


def zipped_with_cycle(training, step, save):
    first, second = training.data
    for _ in range(first.epoch, 9):
        for pair in zip(first, itertools.cycle(second), strict=False):
            training.update(*pair)
            save(step)
            step += 1


def in_turn(training, step, save):
    """Each loader begins again when it has come to its end, as in GANs."""
    loaders = training.data
    iterators = [iter(one) for one in loaders]
    while True:
        batches = []
        for number, one in enumerate(loaders):
            try:
                batches.append(next(iterators[number]))
            except StopIteration:
                iterators[number] = iter(one)
                batches.append(next(iterators[number]))
        training.update(*batches)
        save(step)
        step += 1


def pair(first, second, noisy=False):
    return lambda: [plain(first, noisy)(), plain(second, noisy)()]


@pytest.mark.parametrize("data", first_of([pair(14, 8, noisy=True), pair(8, 14), pair(14, 8), pair(8, 8),
                                           pair(8, 14, noisy=True)], 1))
@pytest.mark.parametrize("loop", [zipped, in_turn])
def test_several_loaders_are_resumed_together(tmp_path, data, loop, caplog):
    check_stops(tmp_path, data, loop)
    assert not caplog.text


def test_a_loader_may_be_zipped_with_a_cycle_of_another(tmp_path, caplog):
    check_stops(tmp_path, pair(10, 6), zipped_with_cycle)
    assert not caplog.text


def test_loaders_may_have_names_and_be_of_different_kinds(tmp_path):
    def data():
        return {"plain": plain()(), "sequence": loader(Numbers(), 2, seed=3),
                "resumable": resumable(plain()())}

    def loop(training, step, save):
        for _ in range(training.data["plain"].epoch, 9):
            for batches in zip(*training.data.values(), strict=False):
                training.update(*batches)
                save(step)
                step += 1

    check_stops(tmp_path, data, loop)


def test_other_loaders_than_saved_are_refused(tmp_path):
    Training(pair(8, 8), 0).run(tmp_path, zipped, 3)
    with pytest.raises(ValueError, match="data is a plain DataLoader and a plain DataLoader"):
        Training(plain(8), 1).run(tmp_path, in_epochs)
    with pytest.raises(ValueError, match="the same loader twice"):
        one = plain(8)()
        Training(lambda: [one, one], 1).run(tmp_path, zipped)


def test_a_list_with_something_else_is_refused_by_its_name(tmp_path):
    with pytest.raises(TypeError, match="data.1: a builtins.range without state_dict"):
        Training(lambda: [plain()(), range(3)], 0).run(tmp_path, zipped)


# Samplers


class Shuffled(Sampler):
    """Shuffles with the generators that users take, at once when it is iterated."""

    def __init__(self):
        self.rng = numpy.random.default_rng(3)

    def __len__(self):
        return 10

    def __iter__(self):
        order = self.rng.permutation(10).tolist()
        random.shuffle(order)
        return iter(numpy.random.permutation(order).tolist())


def test_a_sampler_may_shuffle_with_any_generator(tmp_path):
    check_stops(tmp_path, lambda: DataLoader(Numbers(), 2, sampler=Shuffled()), in_epochs)


OVER = "for {} in range(first, 3):"


@pytest.mark.parametrize(("around", "is_in_file", "is_told"), [
    (OVER.format("epoch"), False, True),
    (OVER.format("epoch_idx"), False, True),
    (OVER.format("number"), True, True),  # the loop right around that over the loader
    (OVER.format("number"), False, False),  # without its source, only a name tells
    ("for trial in range(first, 3):\n        while True:", True, False),
])
def test_epochs_that_a_function_counts_from_0_after_a_resume_are_named(tmp_path, caplog, around, is_in_file,
                                                                       is_told):
    """The variable is a function's, and looking at it keeps nothing alive that the function holds."""
    source = f"""
def train(ck, loader, made, first):
    step, held = ck.resume(), made()
    {around}
            for batch in loader:
                ck.step(step)
                step += 1
                held = None
                if step in (6, 9):
                    return
"""
    scope = {}
    if is_in_file:
        (tmp_path / "trained.py").write_text(source)
    exec(compile(source, str(tmp_path / "trained.py"), "exec"), scope)

    class Held:
        pass

    alive = weakref.WeakSet()

    def made():
        held = Held()
        alive.add(held)
        return held

    for first in (0, 0):
        loader = torch.utils.data.DataLoader(Numbers(4))
        ck = holdfast.Checkpointer(tmp_path / "run", model=nn.Linear(1, 1), data=loader, every="1 steps",
                                   writing=holdfast.Writing(space_reserve=0))
        scope["train"](ck, loader, made, first)
        ck.close()
        assert not alive
    said = [one for one in caplog.messages if "after a resume in epoch 1" in one]
    assert bool(said) == is_told, caplog.messages
