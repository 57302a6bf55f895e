"""holdfast.data reads every sample once and in order, whatever restarts, ranks and workers do."""

import itertools
import random
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

import holdfast
from holdfast.data import Sequence, loader, resumable

workers = pytest.mark.parametrize("workers", [0, 2])


class Drawing(torch.utils.data.Dataset):
    """Samples with noise from all generators that datasets use. Counts how often it is read."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.reads = 0

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        self.reads += 1
        noise = [torch.rand(()).item(), random.random(), numpy.random.rand()]
        return torch.tensor([index, *noise], dtype=torch.float64)


def values(batches) -> list[list]:
    return [batch.tolist() for batch in batches]


def take(iterable, count: int) -> list:
    """The next `count` batches. Does not ask for another one."""
    return [batch for _, batch in zip(range(count), iterable, strict=False)]


# The sequence itself; its arithmetic is tested in C++.


def test_the_sequence_needs_no_torch_and_the_loader_says_that_it_does():
    code = (
        f"import sys; sys.path.insert(0, {str(Path(holdfast.__file__).parent.parent)!r})\n"
        "sys.modules['torch'] = None\n"
        "import holdfast; print(holdfast.data.Sequence(10, seed=0).indices(0, 10))\n"
        "try: holdfast.data.loader\n"
        "except ImportError: print('no torch')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.splitlines() == ["[6, 9, 5, 0, 7, 8, 2, 1, 4, 3]", "no torch"]


def test_a_sequence_prints_as_the_call_that_makes_it():
    text = 'Sequence(10, batch=4, seed=7, shuffle=True, last="drop")'
    assert repr(eval(text)) == text
    assert eval(text).batches_per_epoch == 2


@pytest.mark.parametrize("call", [
    lambda: Sequence(0),
    lambda: Sequence(5, 0),
    lambda: Sequence(5, 6, last="drop"),
    lambda: Sequence(5, last="none"),
    lambda: Sequence(5).index(-1),
    lambda: Sequence(5).indices(-1, 3),
    lambda: Sequence(5).step(-1),
    lambda: Sequence.share(0, 4, 2, 2),
    lambda: Sequence.share(4, 0, 0, 2),
])  # fmt: skip
def test_a_sequence_refuses_what_makes_no_sense(call):
    with pytest.raises(ValueError, match="want|expected"):
        call()


# holdfast.data.loader.


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(6, 40),
    batch=st.integers(6, 12),
    last=st.sampled_from(["short", "drop", "join"]),
    spells=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), max_size=12),
)
def test_every_sample_comes_once_and_in_order_however_the_ranks_change(
    samples, batch, last, spells
):
    samples = max(samples, batch)
    sequence = Sequence(samples, batch, seed=5, last=last)
    least = {"short": samples % batch, "drop": 0, "join": 3 * samples % batch}[last] or batch
    seen, state = [], None
    for world, steps in [*spells, (1, 1000)]:
        world = min(world, least)
        ranks = [
            holdfast.data.BatchSampler(sequence, rank=r, world=world, epochs=3)
            for r in range(world)
        ]
        for rank in ranks if state is not None else []:
            rank.load_state_dict(state)
        for shares in take(zip(*ranks, strict=True), steps):
            seen += itertools.chain(*shares)
            for rank in ranks:
                rank.advance()
        states = [rank.state_dict() for rank in ranks]
        assert all(state == states[0] for state in states)
        state = states[0]
    per_epoch = samples - samples % batch if last == "drop" else samples
    want = [sequence.indices(at, at + per_epoch) for at in range(0, 3 * samples, samples)]
    assert seen == list(itertools.chain(*want))


@pytest.mark.parametrize("options", [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "prefetch_factor": 5, "persistent_workers": True},
])  # fmt: skip
def test_a_restarted_loader_goes_on_with_the_next_batch_and_its_noise(options):
    data = Drawing(17)
    whole = values(loader(data, 5, seed=1, epochs=3))
    assert sorted(row[0] for batch in whole for row in batch) == sorted(list(range(17)) * 3)
    seen, state = [], None
    for steps in (3, 1, 4, 100):
        again = loader(data, 5, seed=1, epochs=3, **options)
        if state is not None:
            again.load_state_dict(state)
        assert again.epoch == len(seen) // 4
        seen += values(take(again, steps))
        state = again.state_dict()
    assert seen == whole


@workers
def test_ranks_together_read_the_batches_of_one(workers):
    data = Drawing(14)
    ranks = [loader(data, 6, epochs=2, last="join", rank=r, world=3, num_workers=workers)
             for r in range(3)]  # fmt: skip
    together = [sum(parts, []) for parts in zip(*map(values, ranks), strict=True)]
    assert together == values(loader(data, 6, epochs=2, last="join"))
    assert len(together) == len(ranks[0]) == 5


def test_rank_and_world_come_from_torch_if_not_given(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert values(take(loader(list(range(10)), 4), 1)) == [Sequence(10).indices(2, 4)]
    with pytest.raises(ValueError, match="expected both or neither"):
        loader(list(range(10)), 4, rank=0)


def test_a_loop_that_is_left_goes_on_where_it_was():
    one = loader(list(range(10)), 2, epochs=1)
    assert values(take(one, 2)) + values(one) == values(loader(list(range(10)), 2, epochs=1))
    assert values(one) == []  # a loader whose run is finished has no batches left


def test_one_loop_can_be_one_epoch():
    one = loader(list(range(10)), 4, epochs="each")
    epochs = [list(itertools.chain(*values(one))) for _ in range(2)]
    assert epochs == [Sequence(10).indices(0, 10), Sequence(10).indices(10, 20)]
    assert (one.epoch, len(one)) == (2, 3)


def test_an_endless_loader_has_no_length():
    endless = loader(list(range(4)), 4)
    assert sorted(itertools.chain(*values(take(endless, 9)))) == sorted([0, 1, 2, 3] * 9)
    with pytest.raises(TypeError, match="epochs=None has no length"):
        len(endless)


@workers
def test_a_loader_leaves_the_generators_of_the_training_alone(workers):
    def draws(iterable) -> list[float]:
        torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
        return [(torch.rand(()).item(), random.random(), numpy.random.rand()) for _ in iterable]

    assert draws(loader(Drawing(12), 3, epochs=1, num_workers=workers)) == draws(range(4))


def test_the_batch_size_may_change_at_a_restart():
    one = loader(list(range(10)), 4, seed=9, epochs=1)
    seen = values(take(one, 1))
    two = loader(list(range(10)), 3, seed=0, epochs=1)  # the seed is replaced by that of the state
    two.load_state_dict(one.state_dict())
    assert sum(seen + values(two), []) == Sequence(10, seed=9).indices(0, 10)


def test_another_dataset_is_refused():
    state = loader(list(range(10)), 4).state_dict()
    with pytest.raises(ValueError, match="samples is 11; expected 10"):
        loader(list(range(11)), 4).load_state_dict(state)
    with pytest.raises(ValueError, match="shuffle"):
        loader(list(range(10)), 4, shuffle=False).load_state_dict(state)


def test_a_batch_too_small_for_its_ranks_is_refused_on_all_of_them():
    for rank in range(4):
        with pytest.raises(ValueError, match='a batch of 2 for 4 ranks .* expected .*"drop"'):
            loader(list(range(10)), 8, rank=rank, world=4)
    loader(list(range(10)), 8, rank=0, world=4, last="drop")


def test_datasets_that_read_many_at_once_are_asked_so():
    class Many(Drawing):
        def __getitems__(self, indices):
            self.asked = indices
            return [self[index] for index in indices]

    data = Many(10)
    batch = take(loader(data, 4), 1)[0]
    assert data.asked == Sequence(10).indices(0, 4) == batch[:, 0].tolist()


@pytest.mark.parametrize("make", [
    lambda: loader(list(range(10)), 2, epochs=1),
    lambda: resumable(DataLoader(range(10), 2, shuffle=True))])
@pytest.mark.parametrize("read", [0, 3])
def test_an_iteration_does_not_go_on_after_the_position_was_set(make, read):
    one = make()
    state, old = one.state_dict(), iter(one)
    for _ in range(read):
        next(old)
    one.load_state_dict(state)
    with pytest.raises(RuntimeError, match="resume.. has moved the loader; expected a new `for`"):
        next(old)
    assert len(list(one)) == 5


class Unsized(torch.utils.data.Sampler):
    def __iter__(self):
        return iter(range(6))


def test_a_sampler_needs_no_length():
    one = resumable(DataLoader(range(6), 2, sampler=Unsized()))
    assert len(list(one)) == len(list(one)) == 3 and one.epoch == 2


def test_an_older_iteration_cannot_go_on_beside_a_newer():
    one = loader(list(range(10)), 2)
    old, new = iter(one), iter(one)
    next(new)
    with pytest.raises(RuntimeError, match="a newer loop"):
        next(old)


# holdfast.data.resumable.

DATA = Drawing(11)


def plain(kind: str, workers: int) -> DataLoader:
    """Makes a loader with the named kind of torch's samplers."""
    own = torch.Generator().manual_seed(3)
    options = {
        "sequential": {"batch_size": 2},
        "random": {"batch_size": 3, "shuffle": True},
        "own generator": {"batch_size": 3, "shuffle": True, "generator": own},
        "even": {"batch_size": 1, "sampler": RandomSampler(DATA, num_samples=11, generator=own)},
        "replacement": {
            "batch_size": 4,
            "sampler": RandomSampler(DATA, replacement=True, num_samples=70, generator=own),
        },
        "subset": {"batch_size": 2, "sampler": SubsetRandomSampler([1, 3, 5, 7], None)},
        "batches": {"batch_sampler": BatchSampler(SequentialSampler(DATA), 4, True)},
        "distributed": {"batch_size": 2, "sampler": DistributedSampler(DATA, 2, 1, seed=2)},
        "singles": {"batch_size": None, "shuffle": True},
    }[kind]
    return DataLoader(DATA, num_workers=workers, **options)


KINDS = ["sequential", "random", "own generator", "even", "replacement", "subset", "batches",
         "distributed", "singles"]  # fmt: skip


def generators() -> tuple:
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state()


def set_generators(states: tuple) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])


def train(batches, count: int = 1000) -> list:
    """What training uses: each batch,
    and a random number that is drawn after it, as dropout does."""
    return [(batch.tolist(), torch.rand(()).item(), random.random())
            for _, batch in zip(range(count), batches, strict=False)]  # fmt: skip


def seed_process(seed: int) -> None:
    torch.manual_seed(seed), random.seed(seed), numpy.random.seed(seed)


def restarted(kind: str, workers: int, spells: list[int], epochs: int) -> list:
    """Trains in several runs, each of which begins like a new process."""
    seen, saved = [], None
    for number, steps in enumerate(spells):
        seed_process(number)  # in a new process the generators have other states
        again = resumable(plain(kind, workers), epochs=epochs)
        if saved is not None:
            again.load_state_dict(saved[0])
            again.after_iter = lambda states=saved[1]: set_generators(states)
        seen += train(again, steps)
        saved = again.state_dict(), generators()
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_without_workers_a_resumable_loader_gives_what_the_plain_one_gives(kind):
    seed_process(0)
    loader_ = plain(kind, 0)
    want = [train(loader_) for _ in range(3)]
    seed_process(0)
    wrapped = resumable(plain(kind, 0))
    assert [train(wrapped) for _ in range(3)] == want
    assert (wrapped.epoch, len(wrapped)) == (3, len(loader_))


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_loader_repeats_what_was_to_come_bit_for_bit(kind):
    epoch = len(plain(kind, 0))
    whole = restarted(kind, 0, [1000], epochs=3)
    assert len(whole) == 3 * epoch
    for first in (0, 1, epoch - 1, epoch, epoch + 1, 3 * epoch):
        assert restarted(kind, 0, [first, 1, 1000], epochs=3) == whole, first


@pytest.mark.parametrize("kind", ["random", "even"])
def test_with_workers_it_repeats_it_too(kind):
    epoch = len(plain(kind, 0))
    whole = restarted(kind, 2, [1000], epochs=2)
    assert restarted(kind, 2, [1, epoch - 1, 2, 1000], epochs=2) == whole


@pytest.mark.parametrize("first", [1, 3, 4])
def test_epoch_by_epoch_it_goes_on_in_the_middle_and_at_the_end(first):
    seed_process(0)
    one = resumable(plain("random", 0))
    batches = iter(one)
    values(take(batches, first))
    state, kept = one.state_dict(), generators()
    want = [*values(batches), *values(one)]
    seed_process(1)
    two = resumable(plain("random", 0))
    two.load_state_dict(state)
    two.after_iter = lambda: set_generators(kept)
    assert two.epoch == 0
    assert [*itertools.chain(*(values(two) for _ in range(two.epoch, 2)))] == want


def test_over_epochs_the_samplers_are_told_which_it_is():
    spanning = resumable(plain("distributed", 0), epochs=2)
    indices = [row[0] for batch in values(spanning) for row in batch]
    assert len(indices) == 12
    assert indices[:6] != indices[6:]


def test_what_was_read_before_is_not_read_again():
    DATA.reads = 0
    one = resumable(plain("random", 0))
    take(one, 3)
    assert DATA.reads == 9
    two = resumable(plain("random", 0))
    two.load_state_dict(one.state_dict())
    next(iter(two))
    assert DATA.reads == 11


def test_without_a_callback_resuming_leaves_the_generators_as_they_were():
    one = resumable(plain("random", 0), epochs=1)
    take(one, 2)
    two = resumable(plain("random", 0), epochs=1)
    two.load_state_dict(one.state_dict())
    before = torch.get_rng_state()
    iter(two)
    assert torch.equal(torch.get_rng_state(), before)


def test_worker_init_sees_the_users_dataset():
    def check(worker: int) -> None:
        assert torch.utils.data.get_worker_info().dataset is DATA

    assert len(values(resumable(DataLoader(DATA, 11, num_workers=1, worker_init_fn=check)))) == 1


def test_an_order_that_cannot_be_repeated_is_refused():
    class Whim(SequentialSampler):
        def __iter__(self):
            order = list(range(len(self.data_source)))
            random.SystemRandom().shuffle(order)
            return iter(order)

    one = resumable(DataLoader(DATA, 2, sampler=Whim(DATA)))
    take(one, 5)
    two = resumable(DataLoader(DATA, 2, sampler=Whim(DATA)))
    two.load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match="Whim gives another order"):
        iter(two)


def test_what_cannot_say_where_it_is_is_refused_with_a_way_out():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    class Special(DataLoader):
        pass

    with pytest.raises(TypeError, match="Stream is an IterableDataset.*StatefulDataLoader"):
        resumable(DataLoader(Stream()))
    with pytest.raises(TypeError, match="data: Stream is a stream or has no len.*Stateful"):
        loader(Stream(), 2)
    with pytest.raises(TypeError, match="Special is no plain torch DataLoader"):
        resumable(Special(DATA))
    with pytest.raises(TypeError, match="in_order"):
        resumable(DataLoader(DATA, in_order=False))


def test_a_loader_with_a_state_of_its_own_is_left_as_it_is():
    class Stateful(DataLoader):
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    stateful = Stateful(DATA)
    assert resumable(stateful) is stateful
    own = loader(DATA, 2)
    assert resumable(own) is own


def test_a_plain_loader_is_not_resumed_on_another_number_of_ranks():
    one = resumable(plain("random", 0))
    with pytest.raises(ValueError, match="1 ranks, and 4 saved.*holdfast.data.loader"):
        one.load_state_dict({**one.state_dict(), "world": 4})
