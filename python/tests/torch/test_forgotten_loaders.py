"""DataLoaders that feed a training and were not given: named once, and never those of a validation."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast


def net():
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def loader(batches=6):
    return DataLoader(TensorDataset(torch.randn(4 * batches, 4)), batch_size=4)


def update(model, opt, batch):
    opt.zero_grad()
    model(batch[0]).square().mean().backward()
    opt.step()


def train(run, make_batches, between=lambda: None, **options):
    """Six steps with the batches that a function makes. Returns what ck.check() says at their end."""
    model, opt = net()
    with holdfast.Checkpointer(run, model=model, optimizer=opt, every="1h", **options) as ck:
        ck.resume()
        for step, batch in zip(range(6), make_batches()):
            update(model, opt, batch)
            between()
            ck.step(step)
        return ck.check()


def named(caplog):
    return [text for text in caplog.messages if "feeds the training" in text]


def test_a_loader_that_feeds_the_training_is_named_once(tmp_path, caplog):
    said = train(tmp_path, lambda: loader())
    text, = named(caplog)
    assert "a DataLoader of a TensorDataset" in text and "expected data=" in text
    assert said.unsaved == [text]


def test_a_loader_that_is_made_anew_in_each_epoch_is_named_once(tmp_path, caplog):
    train(tmp_path, lambda: (batch for _ in range(3) for batch in loader(2)))
    assert len(named(caplog)) == 1


@pytest.mark.parametrize("shares", [False, True])
def test_a_second_loader_beside_the_given_one_is_named(tmp_path, caplog, shares):
    given = loader()
    other = DataLoader(given.dataset, batch_size=4) if shares else loader()
    train(tmp_path, lambda: (batch for batch, _ in zip(given, other)), data=given)
    assert len(named(caplog)) == 1


def test_loaders_of_a_validation_are_not_named(tmp_path, caplog):
    given, whole, part = loader(), loader(), loader(20)
    batches = iter(part)

    def validate():
        assert len(list(whole)) == 6  # read to its end between two steps
        with torch.no_grad():
            next(batches)

    said = train(tmp_path, lambda: given, validate, data=given)
    assert not named(caplog) and said.is_exact


def test_a_loader_whose_sampler_is_saved_as_an_object_is_not_named(tmp_path, caplog):
    class Positions(torch.utils.data.Sampler):
        next = 0

        def __iter__(self):
            for self.next in range(self.next + 1, 25):
                yield self.next - 1

        def state_dict(self):
            return {"next": self.next}

        def load_state_dict(self, state):
            self.next = state["next"]

    positions = Positions()
    data = TensorDataset(torch.randn(24, 4))
    train(tmp_path, lambda: DataLoader(data, batch_size=4, sampler=positions),
          objects={"positions": positions})
    assert not named(caplog)


@pytest.mark.parametrize(("make", "line"), [
    (lambda given, early: early, r"expected iter\(loader\) behind ck.resume\(\)"),
    (lambda given, early: DataLoader(given.dataset, batch_size=4), "`for batch in loader`"),
], ids=["iter(loader) before", "another loader"])
def test_reading_past_the_given_loader_is_refused_with_the_line_to_write(tmp_path, make, line):
    given = loader()
    early = iter(given)
    with pytest.raises(ValueError, match=f"the training reads past the loader .*{line}"):
        train(tmp_path, lambda: make(given, early), data=given)


def test_loaders_of_holdfast_that_were_not_given_are_named_and_given_ones_are_not(tmp_path, caplog):
    given, other = (holdfast.data.loader(torch.randn(24, 4).unsqueeze(1), batch_size=4) for _ in range(2))
    train(tmp_path / "given", lambda: given, data=given)
    assert not named(caplog)
    train(tmp_path / "forgotten", lambda: other)
    assert len(named(caplog)) == 1


def test_two_loaders_of_one_dataset_that_are_both_given_are_right(tmp_path, caplog):
    a = loader()
    b = DataLoader(a.dataset, batch_size=4, shuffle=True)
    train(tmp_path, lambda: (batch for batch, _ in zip(a, b)), data=[a, b])
    assert not named(caplog)


@pytest.mark.parametrize("make", [
    loader, lambda: holdfast.data.loader(torch.randn(24, 4).unsqueeze(1), batch_size=4)],
    ids=["of torch", "of Holdfast"])
def test_the_loader_of_another_checkpointer_is_not_named(tmp_path, caplog, make):
    model, opt = net()
    own, others = make(), make()
    with holdfast.Checkpointer(tmp_path / "other", model=model, optimizer=opt, data=others) as other:
        other.resume()
        train(tmp_path / "own", lambda: (batch for batch, _ in zip(own, others)), data=own)
        other.close(save=False)
    assert not named(caplog)
