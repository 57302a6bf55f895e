"""Lightning's validations, hooks and sums of an epoch are those of a run that was not stopped."""

import logging
import random
import warnings

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchmetrics import MeanMetric

import holdfast
from holdfast.torch.lightning import HoldfastCallback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

BATCHES = 6  # of an epoch


class Model(pl.LightningModule):
    """Writes down all that happens to it, with the numbers that it sees."""

    def __init__(self, events, interval="epoch"):
        super().__init__()
        self.events = events
        self.interval = interval
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 1))
        self.mean = MeanMetric()
        self.register_buffer("average", torch.zeros(6, 4))

    def note(self, what, value):
        key = (what, self.current_epoch, self.trainer.fit_loop.epoch_loop.batch_idx)
        self.events.append((key, float(value).hex()))

    def loss(self, batch):
        return (self.net(batch[0]) - batch[0].sum(1, keepdim=True)).pow(2).mean()

    def training_step(self, batch, index):
        loss = self.loss(batch)
        self.note("batch", loss)
        self.mean(loss.detach())
        self.log("train_loss", loss, on_epoch=True, on_step=True)
        self.log("highest", loss.detach(), on_epoch=True, on_step=False, reduce_fx="max")
        self.log("mean", self.mean, on_epoch=True, on_step=False)
        return loss

    def on_train_batch_end(self, *args):
        with torch.no_grad():
            self.average.mul_(0.5).add_(self.net[0].weight)
        self.note("averaged", self.average.sum())

    def validation_step(self, batch, index, dataloader_idx=0):
        name = "other" if dataloader_idx else "val_loss"
        self.log(name, self.loss(batch) + torch.rand(()), add_dataloader_idx=False)
        self.note(f"validation of {dataloader_idx}, {index}", self.average.sum())

    def on_validation_end(self):
        if not self.trainer.sanity_checking:
            self.note("validated", self.trainer.callback_metrics["val_loss"])

    def on_train_epoch_start(self):
        self.note("epoch begins", self.average.sum())

    def on_train_epoch_end(self):
        for name in ("train_loss_epoch", "highest", "mean"):
            self.note(name, self.trainer.callback_metrics[name])
        self.note("learning rate", self.optimizers().param_groups[0]["lr"])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        monitor = "train_loss_epoch" if self.interval == "epoch" else "val_loss"
        return {"optimizer": optimizer, "lr_scheduler": {
            "scheduler": scheduler, "monitor": monitor, "interval": self.interval,
            "strict": False}}


class StopBefore(pl.Callback):
    """Raises an exception before a batch, or in the middle of a validation."""

    def __init__(self, where):
        self.where = where

    def on_train_batch_start(self, trainer, module, batch, index):
        if self.where == ("batch", trainer.current_epoch, index):
            raise RuntimeError("stopped")

    def on_validation_batch_start(self, trainer, module, batch, index, dataloader_idx=0):
        if self.where == ("validation", trainer.current_epoch, index) and (
                not trainer.sanity_checking):
            raise RuntimeError("stopped")

    def on_train_epoch_end(self, trainer, module):
        if self.where == ("epoch's end", trainer.current_epoch, None):
            raise RuntimeError("stopped")


class Noisy(TensorDataset):
    """Draws from a generator of its own."""

    def __init__(self, *tensors, scale=0.1):
        super().__init__(*tensors)
        self.rng = random.Random(5)
        self.scale = torch.full((4,), scale)

    def __getitem__(self, index):
        return (super().__getitem__(index)[0] + self.rng.random() * self.scale,)


def data(batches=BATCHES):
    return TensorDataset(torch.arange(8.0 * batches).reshape(-1, 4) / 20)


def loaders(kind):
    if kind == "plain":
        train = DataLoader(data(), 2, shuffle=True)
    elif kind == "resumable":
        train = holdfast.data.resumable(DataLoader(data(), 2, shuffle=True))
    elif kind == "noisy":
        train = holdfast.data.resumable(DataLoader(Noisy(*data().tensors), 2, shuffle=True))
    elif kind.startswith("plain and noisy"):
        train = DataLoader(Noisy(*data().tensors, scale=0.2 if "other" in kind else 0.1), 2)
    elif kind == "torchdata":
        train = StatefulDataLoader(data(), 2, shuffle=True)
    elif kind == "workers":
        train = holdfast.data.resumable(DataLoader(data(), 2, shuffle=True, num_workers=2,
                                                   persistent_workers=True))
    else:
        train = holdfast.data.loader(data(), 2, seed=3, epochs="each")
    if kind == "endless":
        train = holdfast.data.loader(data(), 2, seed=3)
    lasting = {"num_workers": 1, "persistent_workers": True} if kind == "workers" else {}
    return train, [DataLoader(data(2), 2, shuffle=True, **lasting), DataLoader(data(1), 2)]


def life(run, events, stop=None, kind="holdfast", seed=0, interval="epoch", more=(), every="1 steps",
         **options):
    pl.seed_everything(seed)
    model = Model(events, interval)
    callback = HoldfastCallback(run, every=every, keep=2,
                                writing=holdfast.Writing(space_reserve=0))
    trainer = pl.Trainer(**({"max_epochs": 3, "accelerator": "cpu", "logger": False,
                             "enable_progress_bar": False, "enable_model_summary": False,
                             "default_root_dir": run, "enable_checkpointing": False} | options),
                         callbacks=[callback, *more, *([StopBefore(stop)] if stop else [])])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train, validation = loaders(kind)
        if stop is None:
            trainer.fit(model, train, validation)
        else:
            with pytest.raises(RuntimeError, match="stopped"):
                trainer.fit(model, train, validation)
    return model


def check(tmp_path, stops, **options):
    """Compares a run that was stopped in these places with one that was not."""
    more = options.pop("more", list)
    whole_events = []
    whole = life(tmp_path / "whole", whole_events, more=more(), **options)
    parts = []
    for seed, stop in enumerate([*stops, None]):
        events = []
        again = life(tmp_path / "run", events, stop, seed=seed, more=more(), **options)
        parts.append(events)
    assert [set(events) - set(whole_events) for events in parts] == [set()] * len(parts)
    assert {key for events in parts for key, _ in events} == {key for key, _ in whole_events}
    assert parts[-1] == whole_events[-len(parts[-1]):]
    assert len(parts[-1]) < len(whole_events)
    theirs = whole.state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in again.state_dict().items())


STOPS = {
    "in mid-epoch": [("batch", 1, 3)],
    "at an epoch's end": [("batch", 1, 0)],
    "at an epoch's end, then in mid-epoch": [("batch", 1, 0), ("batch", 1, 3)],
    "twice in mid-epoch": [("batch", 1, 2), ("batch", 1, 4)],
    "before the last batch": [("batch", 0, BATCHES - 1), ("batch", 2, BATCHES - 1)],
    "in validations": [("validation", 0, 1), ("validation", 1, 0)],
    "in the hooks of an epoch's end": [("epoch's end", 0, None), ("epoch's end", 2, None)],
}


@pytest.mark.parametrize("stops", STOPS)
def test_all_that_happens_is_what_happens_without_stops(tmp_path, stops):
    check(tmp_path, STOPS[stops])


OPTIONS = {
    "accumulated gradients": {"accumulate_grad_batches": 2},
    "several validations in an epoch": {"val_check_interval": 2},
    "a validation every two epochs": {"check_val_every_n_epoch": 2, "max_epochs": 4},
    "validations by batches": {"val_check_interval": 4, "check_val_every_n_epoch": None},
    "a scheduler by steps": {"interval": "step", "val_check_interval": 2},
    "workers that stay": {"kind": "workers"},
    "steps": {"max_steps": 16, "max_epochs": -1},
    "parts of epochs": {"limit_train_batches": 5, "kind": "resumable"},
    "torchdata": {"kind": "torchdata"},
    "a dataset that draws from its own generator": {"kind": "noisy"},
    "averaged weights": {"more": lambda: [EMAWeightAveraging(decay=0.5)]},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_it_holds_with_options_of_the_trainer(tmp_path, name):
    check(tmp_path, [("batch", 0, 4), ("batch", 1, 0), ("batch", 1, 2), ("validation", 1, 0)],
          **OPTIONS[name])


def test_a_plain_loader_is_exact_between_epochs(tmp_path):
    check(tmp_path, [("batch", 1, 0), ("batch", 2, 0)], kind="plain")


def test_generators_of_datasets_go_on_with_a_plain_loader(tmp_path):
    check(tmp_path, [("batch", 1, 0), ("batch", 2, 0)], kind="plain and noisy")


def test_another_dataset_of_the_same_length_is_refused(tmp_path):
    life(tmp_path, [], ("batch", 1, 0), kind="plain and noisy")
    with pytest.raises(ValueError, match="the dataset is not the one of the checkpoint .*_fingerprint = "):
        life(tmp_path, [], kind="plain and noisy, other")


def test_a_batch_that_lightning_has_read_ahead_is_not_lost(tmp_path):
    check(tmp_path, [("batch", 0, 3), ("batch", 0, 4), ("batch", 0, 9)], kind="endless",
          max_epochs=-1, max_steps=12, limit_val_batches=0)


def test_a_training_that_stopped_early_is_not_resumed_past_its_end(tmp_path):
    def more():
        return [EarlyStopping("val_loss", patience=0, mode="max")]

    ended = []
    life(tmp_path / "run", ended, more=more())
    again = []
    life(tmp_path / "run", again, more=more(), seed=1)
    assert ended and not again


def test_the_best_steps_by_a_metric_of_a_validation_are_kept(tmp_path):
    class Scored(Model):
        def on_validation_epoch_end(self):
            self.log("score", [0.2, 0.9, 0.5][self.current_epoch])

    pl.seed_everything(0)
    callback = HoldfastCallback(tmp_path / "run", every="1 steps",
                                keep=holdfast.Keep(1, best=1, metric="score", order="max"),
                                writing=holdfast.Writing(space_reserve=0))
    trainer = pl.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False,
                         enable_model_summary=False, enable_checkpointing=False,
                         default_root_dir=tmp_path, callbacks=[callback])
    trainer.fit(Scored([]), *loaders("holdfast"))
    kept = {int(path.name[5:13]): holdfast.restore(tmp_path / "run", {}, int(path.name[5:13])).metrics
            for path in (tmp_path / "run").glob("step-????????")}
    assert kept[12]["score"] == pytest.approx(0.9) and max(kept) == 18
