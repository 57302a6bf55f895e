"""What a Checkpointer refuses. The error is one clear sentence, the same on all ranks; the training
state is not changed, and older checkpoints stay undamaged."""

import itertools
import os
import shutil

import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset
from training import Toy, clear

import holdfast
from holdfast.torch.state.training_state import TrainingState


def same(one, other):
    return (all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))
            and one[1:] == other[1:])


def save(run, steps=2, toy=None, **options):
    toy = toy or Toy()
    with toy.checkpointer(run, **options) as checkpointer:
        toy.train(checkpointer, range(checkpointer.resume(), steps))
    return toy


# Checkpoints of another model or optimizer

def refuse(run, toy, *words, error=ValueError, **options):
    before = toy.state()
    with toy.checkpointer(run, **options) as checkpointer:
        with pytest.raises(error) as raised:
            checkpointer.resume()
    assert clear(raised, *words)
    assert same(toy.state(), before)


def test_a_checkpoint_of_another_model_is_refused_with_a_report(tmp_path):
    save(tmp_path)
    other = Toy(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5), nn.Linear(5, 1, bias=False)))
    refuse(tmp_path, other, "step-", "model.2.weight", "model.1.bias is float32 [2]; expected",
           "[5]")


def test_a_checkpoint_with_more_is_refused_too(tmp_path):
    save(tmp_path)
    refuse(tmp_path, Toy(nn.Sequential(nn.Linear(4, 3))), "not expected", "model.1.weight",
           "strict=False")


def test_so_is_one_of_another_dtype(tmp_path):
    save(tmp_path)
    refuse(tmp_path, Toy(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()),
           "float32", "float64")


def test_so_is_one_of_another_kind_of_optimizer(tmp_path):
    save(tmp_path, toy=Toy(kind=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)))
    refuse(tmp_path, Toy(), "optimizer is a torch.optim.sgd.SGD; expected", "AdamW")
    toy = Toy()
    with toy.checkpointer(tmp_path, strict=False) as checkpointer:
        assert checkpointer.resume() == 2
        toy.train(checkpointer, [2])  # the optimizer gets moments


def sgd(parameters, lr=0.1):
    return torch.optim.SGD(parameters, lr=lr)


@pytest.mark.parametrize("before, now, words", [
    (None, lambda o: o, ["not in it: optimizer.0.weight"]),
    (lambda o: {"a": o}, lambda o: {"b": o}, ["not in it: optimizer.b.0", "not expected: optimizer.a.0"]),
    (lambda o: {"a": o}, lambda o: o, ["not in it: optimizer.0.weight", "not expected: optimizer.a.0"]),
    (lambda o: o, None, ["not expected: optimizer.0.weight"]),
])
def test_so_are_optimizers_by_other_names_or_none(tmp_path, before, now, words):
    first, toy = Toy(kind=sgd), Toy(kind=sgd)
    with first.checkpointer(tmp_path, optimizer=before and before(first.optimizer)) as checkpointer:
        checkpointer.save(1)
    refuse(tmp_path, toy, *words, optimizer=now and now(toy.optimizer))
    with toy.checkpointer(tmp_path, strict=False,
                          optimizer=now and now(toy.optimizer)) as checkpointer:
        assert checkpointer.resume() == 2


@pytest.mark.parametrize("kind", [sgd, torch.optim.Adam])
@pytest.mark.parametrize("before, now, words", [
    (2, 4, ["not in it: optimizer.1.weight, optimizer.1.bias;"]),
    (4, 2, ["not expected: optimizer.1.weight"]),
])
def test_so_are_optimizers_of_other_parameters(tmp_path, kind, before, now, words):
    def some(count):
        return lambda parameters, lr: kind(list(parameters)[:count], lr=lr)

    save(tmp_path, toy=Toy(kind=some(before)))
    refuse(tmp_path, Toy(kind=some(now)), *words)
    assert save(tmp_path, 3, Toy(kind=some(before)))


def stepping(toy):
    return torch.optim.lr_scheduler.StepLR(toy.optimizer, 1)


def cosine(toy):
    return torch.optim.lr_scheduler.CosineAnnealingLR(toy.optimizer, 7)


def test_so_is_one_of_another_kind_of_scheduler(tmp_path):
    first, other = Toy(), Toy()
    save(tmp_path, toy=first, scheduler=stepping(first))
    refuse(tmp_path, other, "scheduler is a torch.optim.lr_scheduler.StepLR; expected a ",
           "CosineAnnealingLR", scheduler=cosine(other))
    scheduler = cosine(other)
    before = scheduler.state_dict()
    with other.checkpointer(tmp_path, strict=False, scheduler=scheduler) as checkpointer:
        assert checkpointer.resume() == 2
    assert scheduler.state_dict() == before


class Own:
    def __init__(self):
        self.at = 7

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


LOADERS = {"plain DataLoader": lambda: DataLoader(range(8)),
           "holdfast.data.loader": lambda: holdfast.data.loader(range(8), 1),
           "loader with a state_dict of its own": Own}


@pytest.mark.parametrize("before, now", list(itertools.permutations(LOADERS, 2)))
def test_so_is_one_of_another_kind_of_loader(tmp_path, before, now):
    save(tmp_path, data=LOADERS[before]())
    refuse(tmp_path, Toy(), f"data is a {before}; expected a {now}", data=LOADERS[now]())
    data = LOADERS[now]()
    with Toy().checkpointer(tmp_path, strict=False, data=data) as checkpointer:
        position = data.state_dict()
        assert checkpointer.resume() == 2 and data.state_dict() == position


def test_several_schedulers_come_back_and_others_are_refused(tmp_path):
    toy, other = Toy(), Toy()
    for name, these, those in [
        ("list", [stepping(toy), cosine(toy)], [stepping(other), cosine(other)]),
        ("dict", {"a": stepping(toy), "b": cosine(toy)},
         {"a": stepping(other), "b": cosine(other)}),
    ]:
        wanted = these if name == "list" else list(these.values())
        found = those if name == "list" else list(those.values())
        wanted[0].last_epoch = wanted[1].last_epoch = 5
        save(tmp_path / name, toy=toy, scheduler=these)
        with other.checkpointer(tmp_path / name, scheduler=those) as checkpointer:
            assert checkpointer.resume() == 2
        assert [one.state_dict() for one in found] == [one.state_dict() for one in wanted]
        refuse(tmp_path / name, other, "scheduler is a ", "StepLR and a ", scheduler=found[:1])
    with pytest.raises(TypeError) as raised:
        toy.checkpointer(tmp_path / "new", scheduler=[these["a"], 3])
    assert clear(raised, "scheduler.1: a builtins.int without state_dict()")


def test_a_checkpoint_that_does_not_say_the_kinds_is_taken(tmp_path, monkeypatch):
    toy, other = Toy(), Toy()
    with monkeypatch.context() as old:
        old.setattr(TrainingState, "add_plain_values",
                    without_kinds(TrainingState.add_plain_values))
        save(tmp_path, toy=toy, scheduler=stepping(toy), data=DataLoader(range(8)))
    scheduler = stepping(other)
    with other.checkpointer(tmp_path, scheduler=scheduler,
                            data=DataLoader(range(8))) as checkpointer:
        assert checkpointer.resume() == 2 and checkpointer.report.exact


def without_kinds(complete):
    def changed(self, captured):
        complete(self, captured)
        del captured.objects["kinds"]
    return changed


def test_an_object_that_is_not_in_the_checkpoint_is_missed(tmp_path):
    save(tmp_path)
    toy = Toy()
    scheduler = torch.optim.lr_scheduler.StepLR(toy.optimizer, 1)
    refuse(tmp_path, toy, "not in it", "scheduler", scheduler=scheduler)


def test_what_fits_is_taken_if_it_need_not_be_all(tmp_path):
    saved = save(tmp_path)
    toy = Toy(nn.ModuleDict({"0": nn.Linear(4, 3), "new": nn.Linear(3, 2)}))
    fresh = toy.model["new"].weight.detach().clone()
    with toy.checkpointer(tmp_path, strict=False) as checkpointer:
        assert checkpointer.resume() == 2
        assert torch.equal(toy.model["0"].weight, saved.model[0].weight)
        assert torch.equal(toy.model["new"].weight, fresh)
        assert "model.new.weight" in checkpointer.report.missing
        assert "model.1.weight" in checkpointer.report.unexpected
        moments = toy.optimizer.state[toy.model["0"].weight]["exp_avg"]
        assert torch.equal(moments, saved.optimizer.state[saved.model[0].weight]["exp_avg"])
        toy.train(checkpointer, range(2, 4))
    assert save(tmp_path, 5, Toy(toy.model)).optimizer.state


def test_another_shape_is_refused_even_then(tmp_path):
    save(tmp_path)
    refuse(tmp_path, Toy(size=6), "[3, 4]", "[3, 6]", strict=False)


class Odd:
    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"deep": [1, self.value]}

    def load_state_dict(self, state):
        self.value = state["deep"][1]


def test_an_object_that_cannot_be_stored_is_named_and_the_next_save_works(tmp_path):
    toy, odd = Toy(), Odd(object())
    with toy.checkpointer(tmp_path, objects={"thing": odd}) as checkpointer:
        checkpointer.resume()
        toy.step()
        with pytest.raises(TypeError) as raised:
            checkpointer.step(0)
        assert clear(raised, "thing.deep.1", "object")
        odd.value = 7
        toy.train(checkpointer, [1])
    assert holdfast.open(tmp_path).objects["things"]["thing"] == {"deep": [1, 7]}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


class Special(DataLoader):
    pass


@pytest.mark.parametrize("data, words", [
    (iter([1]), ("data", "state_dict", "holdfast.data.loader")),
    (DataLoader(Stream()), ("data", "Stream", "IterableDataset", "StatefulDataLoader")),
    (Special(range(4)), ("data", "Special", "holdfast.data.loader")),
    (DataLoader(range(4), in_order=False), ("data", "in_order=True")),
])
def test_data_without_a_position_is_refused_with_what_to_do(tmp_path, data, words):
    with pytest.raises(TypeError) as raised:
        Toy().checkpointer(tmp_path / "run", data=data)
    assert clear(raised, *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options, words", [
    ({"every": "often"}, ("every", "often")), ({"guard": "some"}, ("guard", "some")),
    ({"verify": "some"}, ("verify", "some")), ({"backpressure": "x"}, ("backpressure", "x")),
    ({"in_flight": 0}, ("0",)), ({"grace": -1.0}, ("grace", "-1")),
    ({"objects": {"thing": 7}}, ("thing", "int", "state_dict")),
])
def test_options_that_make_no_sense_are_refused(tmp_path, options, words):
    with pytest.raises((ValueError, TypeError)) as raised:
        Toy().checkpointer(tmp_path / "run", **options)
    assert clear(raised, *words)


def test_a_closed_checkpointer_says_so_and_leaves_training_alone(tmp_path):
    toy = Toy()
    checkpointer = toy.checkpointer(tmp_path)
    checkpointer.resume()
    toy.train(checkpointer, range(2))
    checkpointer.close()
    checkpointer.close()
    toy.step()
    for call in (lambda: checkpointer.step(2), lambda: checkpointer.save(2),
                 checkpointer.resume):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_a_second_live_job_is_refused_and_the_first_goes_on(tmp_path):
    toy = Toy()
    with toy.checkpointer(tmp_path) as checkpointer:
        checkpointer.resume()
        toy.train(checkpointer, [0])
        with pytest.raises(holdfast.ConflictError) as raised:
            Toy().checkpointer(tmp_path)
        assert clear(raised, str(tmp_path), str(os.getpid()))
        toy.train(checkpointer, [1])
    assert save(tmp_path, 2)


def test_a_run_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises((OSError, ValueError)) as raised:
        Toy().checkpointer(tmp_path / "file" / "run")
    assert clear(raised, str(tmp_path / "file"))


def test_a_failure_of_the_training_is_not_hidden_by_one_of_the_last_save(tmp_path):
    toy = Toy()
    with pytest.raises(KeyError) as raised:
        with toy.checkpointer(tmp_path / "run") as checkpointer:
            checkpointer.resume()
            shutil.rmtree(tmp_path / "run")
            (tmp_path / "run").write_text("a file, which cannot be made a folder")
            toy.train(checkpointer, [0])
            raise KeyError("mine")
    assert any("last save" in note for note in raised.value.__notes__)


def test_a_loader_that_is_of_other_ranks_is_refused(tmp_path):
    run_ranks(2, plain_data, str(tmp_path))
    data = holdfast.data.resumable(DataLoader(range(8)))
    refuse(tmp_path, Toy(), "data", "2 ranks", "holdfast.data.loader", data=data)


def plain_data(rank, world, run):
    torch.manual_seed(0)
    save(run, toy=Toy(), data=holdfast.data.resumable(DataLoader(range(8))))


def test_a_save_that_was_asked_for_can_be_waited_for(tmp_path):
    # The tensors are so small that save() itself copies them.
    toy = Toy(nn.ParameterList(torch.zeros(1) for _ in range(2)))
    with toy.checkpointer(tmp_path) as checkpointer:
        checkpointer.resume()
        toy.step()
        assert checkpointer.save(7).durable().folder == tmp_path / "step-00000007"
    with toy.checkpointer(tmp_path) as checkpointer:
        assert checkpointer.resume() == 8


# Damage

def shards(folder):
    return sorted(folder.rglob("*.safetensors"))


@pytest.mark.parametrize("harm", [
    lambda shard: shard.unlink(), lambda shard: shard.write_bytes(shard.read_bytes()[:-9]),
])
def test_a_step_without_a_shard_is_passed_over(tmp_path, harm):
    save(tmp_path, 2)
    harm(shards(tmp_path / "step-00000001")[0])
    toy = Toy()
    with toy.checkpointer(tmp_path) as checkpointer:
        assert checkpointer.resume() == 1
        toy.train(checkpointer, [1, 2])
    assert save(tmp_path, 3)


def test_bytes_that_have_changed_are_found_before_they_are_used(tmp_path):
    save(tmp_path, 2)
    shard = shards(tmp_path / "step-00000001")[0]
    data = bytearray(shard.read_bytes())
    data[-2] ^= 1
    shard.write_bytes(data)
    toy = Toy()
    with toy.checkpointer(tmp_path, verify="full") as checkpointer:
        assert checkpointer.resume() == 1


def test_a_run_of_which_nothing_is_whole_is_refused(tmp_path):
    save(tmp_path, 1)
    shards(tmp_path / "step-00000000")[0].unlink()
    refuse(tmp_path, Toy(), str(tmp_path), error=(holdfast.CorruptError, holdfast.NotFoundError))


def lose_shard(rank, world, run):
    torch.manual_seed(0)
    toy = Toy(DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))))
    with toy.checkpointer(run) as checkpointer:
        start = checkpointer.resume()
        toy.train(checkpointer, range(start, start + 2))
    return start


def test_the_shard_of_one_rank_is_missed_by_all(tmp_path):
    assert run_ranks(3, lose_shard, str(tmp_path)) == [0] * 3
    shards(tmp_path / "step-00000001")[-1].unlink()
    assert run_ranks(3, lose_shard, str(tmp_path)) == [1] * 3
