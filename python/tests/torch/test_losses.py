"""The loss is saved as a metric of a checkpoint, and retention keeps the best checkpoints by it."""

import pytest
import torch
from torch import nn

import holdfast
from holdfast.torch.loop import metrics as reported

LOSSES = [5.0, 4.0, 1.0, 3.0, 3.5, 4.5]


class Late(reported.Losses):
    """A loss like that of a GPU, whose value is known one step later."""

    def __init__(self, decide=None):
        super().__init__(decide)
        self._before = None

    def _from_gpu(self, step, loss):
        known, self._before = self._before, (step, float(loss))
        return known


@pytest.fixture
def gpu(monkeypatch):
    """Makes tensors behave as on a GPU, where reading a value would wait."""
    def on_gpu(loss):
        return isinstance(loss, torch.Tensor)

    monkeypatch.setattr(reported, "value_without_waiting",
                        lambda loss: None if on_gpu(loss) else loss)
    monkeypatch.setattr(reported, "is_on_gpu", on_gpu)
    monkeypatch.setattr("holdfast.torch.checkpointer.Losses", Late)


def train(run, save):
    """Saves after every step, and keeps the newest steps and the best ones."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1 steps",
                               keep=holdfast.Keep(1, best=1, metric="loss"),
                               writing=holdfast.Writing(space_reserve=0),
                               failures=holdfast.Failures(signals=False)) as ck:
        ck.resume()
        for step, loss in enumerate(LOSSES):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            save(ck, step, torch.tensor(loss))
    return {int(path.name[5:]): holdfast.restore(run, {}, int(path.name[5:])).metrics
            for path in sorted(run.glob("step-*"))}


def stepped(ck, step, loss):
    ck.step(step, loss=loss)


def asked_for(ck, step, loss):
    ck.save(step, loss=loss).durable()


def test_the_best_by_the_newest_loss_that_a_gpu_has_told_is_kept(gpu, tmp_path):
    # The first save has no loss, so it cannot be compared, and stays.
    assert train(tmp_path, stepped) == {0: {}, 3: {"loss": 1.0}, 5: {"loss": 3.5}}


def test_a_save_that_was_asked_for_has_the_loss_of_its_step(gpu, tmp_path):
    assert train(tmp_path, asked_for) == {2: {"loss": 1.0}, 5: {"loss": 4.5}}


def test_a_loss_in_main_memory_is_of_its_step(tmp_path):
    assert train(tmp_path, stepped) == {2: {"loss": 1.0}, 5: {"loss": 4.5}}
