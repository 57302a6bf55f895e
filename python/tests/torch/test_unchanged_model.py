"""A model that never changes is told of once, and no training that changes anything is."""

import pytest
import torch
from torch import nn
from training import Toy

SAID = "has not changed in"


class Params:
    """The parameters of a functional training, given as an object of the user's own."""

    def __init__(self):
        self.weight = torch.zeros(3)

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight = state["weight"]


def train(run, toy, change, steps=10, **options):
    with toy.checkpointer(run, **options) as ck:
        for step in range(steps):
            change(step)
            ck.save(step)


def test_a_model_that_never_changes_is_told_of_once(tmp_path, caplog):
    train(tmp_path / "run", Toy(), lambda step: None)
    assert sum(SAID in one.message for one in caplog.records) == 1


def frozen(toy):
    for parameter in toy.model[0].parameters():
        parameter.requires_grad_(False)
    toy.optimizer = torch.optim.SGD(toy.model[1].parameters(), lr=0.1)
    return lambda step: (toy.model(torch.ones(1, 4)).sum().backward(), toy.optimizer.step(),
                         toy.optimizer.zero_grad())


def without_rate(toy):
    toy.optimizer = torch.optim.SGD(toy.model.parameters(), lr=0.0)
    return lambda step: toy.step()


def by_data(toy):
    return lambda step: toy.model[0].weight.data.view(-1).numpy().__iadd__(1)


def last_alone(toy):
    """Writes to the one element of a large model, past the sample and torch's versions."""
    toy.model.extend(nn.Linear(2, 2) for _ in range(20))
    return lambda step: toy.model[-2].bias.data.add_(1)


@pytest.mark.parametrize("kind", [frozen, without_rate, by_data, last_alone])
def test_a_training_that_changes_anything_is_not(tmp_path, caplog, kind):
    toy = Toy()
    change = kind(toy)
    train(tmp_path / "run", toy, change)
    assert SAID not in caplog.text


def test_a_training_whose_parameters_are_an_object_of_the_users_is_not(tmp_path, caplog):
    params = Params()
    train(tmp_path / "run", Toy(), lambda step: params.weight.add_(1), objects={"params": params})
    assert SAID not in caplog.text


def test_a_model_without_anything_to_train_is_not(tmp_path, caplog):
    toy = Toy()
    toy.model.requires_grad_(False)
    train(tmp_path / "run", toy, lambda step: None)
    assert SAID not in caplog.text
